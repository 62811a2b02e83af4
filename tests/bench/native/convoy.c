/* Threads that all want one lock: what convoy() of programs.py stages, as a C programmer would write it. */
#define FRAMES 3
#include "machine.h"

enum { WORKER, LOCK_FRAME, SLOWPATH };
static const char *const symbols[] = {"worker", "_raw_spin_lock", "native_queued_spin_lock_slowpath"};

enum { TAKE, ENTER, READ, WRITE, LEAVE };

static struct lock_class class;
static struct lock lock;
static struct line shared_line;
static i64 shared_value;
static i64 left[THREADS];

static i64 simulate(void)
{
    int live = THREADS, tid = next_thread(0, -1);
    for (;;) {
        struct thread *me = &threads[tid];
        i64 t = me->time, before, limit = time_limit(tid);
        int gone = 0;
        while (t < limit && !gone) {
            before = t;
            switch (me->step) {
            case TAKE:
                if (left[tid]-- == 0) {
                    if (--live == 0)
                        return t;
                    gone = 1;
                    break;
                }
                t = locked_access(&lock.line, me, t);
                profile[LOCK_FRAME] += t - before;
                gone = !acquire(&lock, tid, t, SLOWPATH);
                me->step = ENTER;
                break;
            case ENTER:
                t += CRITICAL_PS;
                profile[WORKER] += t - before;
                me->step = READ;
                break;
            case READ:
                t = read_line(&shared_line, me, t);
                profile[WORKER] += t - before;
                me->step = WRITE;
                break;
            case WRITE:
                shared_value++;
                t = write_line(&shared_line, me, t);
                profile[WORKER] += t - before;
                me->step = LEAVE;
                break;
            case LEAVE:
                t = release(&lock, me, t) + OUTSIDE_PS;
                limit = time_limit(tid);
                profile[WORKER] += t - before;
                me->step = TAKE;
                break;
            }
        }
        tid = next_thread(tid, gone ? -1 : t);
    }
}

int main(void)
{
    init_threads();
    init_lock(&lock, &class);
    init_line(&shared_line);
    for (int tid = 0; tid < THREADS; tid++)
        left[tid] = LOOPS;
    double start = seconds();
    i64 end = simulate();
    double real = seconds() - start;
    i64 transfers = 0, ps = 0;
    add_line_totals(&lock.line, &transfers, &ps);
    add_line_totals(&shared_line, &transfers, &ps);
    printf("real %.9f\nend %" PRId64 "\nvalue %" PRId64 "\n", real, end, shared_value);
    printf("lines %" PRId64 " %" PRId64 "\n", transfers, ps);
    print_profile(symbols);
    print_class("lock", &class);
    return 0;
}
