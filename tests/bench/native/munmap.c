/* Processes unmapping zswapped memory on Linux 6.8: what zexp.workload.Munmap stages, as a C programmer would write it.
 *
 * One process is one coroutine: ORDERED stands before every shared access and lets another process go first if its time
 * has come. EAGER selects the accounting; COST_* are picoseconds a call, from the kernel's table.
 */
#define F(name) F_##name
#define SYMBOLS(_) \
    _(unmap_page_range) _(zap_pte_range) _(free_swap_and_cache) _(__swap_entry_free) _(free_swap_slot) \
    _(swapcache_free_entries) _(swap_entry_free) _(__mem_cgroup_uncharge_swap) _(lookup_swap_cgroup_id) \
    _(swap_cgroup_record) _(page_counter_uncharge) _(mem_cgroup_id_put_many) _(swap_range_free) _(zswap_invalidate) \
    _(zswap_rb_search) _(rb_erase) _(zswap_free_entry) _(list_lru_del) _(zpool_free) _(zs_zpool_free) _(zs_free) \
    _(obj_free) _(free_zspage) _(free_unref_page) _(zswap_pool_put) _(obj_cgroup_uncharge_zswap) _(refill_obj_stock) \
    _(obj_cgroup_uncharge_pages) _(kmem_cache_free) _(__slab_free) _(zswap_update_total_size) _(zpool_get_total_size) \
    _(zs_zpool_total_size) _(clear_shadow_from_swap_cache) _(xas_load) _(xas_store) _(drain_slots_cache_cpu)
/* Frames with several parents: one for each. */
#define LOCK_FRAMES(_) _(cluster) _(si) _(cluster_again) _(tree) _(lru) _(pool) _(si_drain)
#define ENUM(name) F_##name,
#define ENUM_LOCK(name) F_take_##name, F_wait_##name,
enum { SYMBOLS(ENUM) F_uncharge_memory, F_drain_free_entries, LOCK_FRAMES(ENUM_LOCK) ENUM_LOCK(xa) FRAME_COUNT };
#define FRAMES FRAME_COUNT
#include "machine.h"

#define NAME(name) #name,
#define NAME_LOCK(name) "_raw_spin_lock", "native_queued_spin_lock_slowpath",
static const char *const symbols[] = {
    SYMBOLS(NAME) "page_counter_uncharge", "swapcache_free_entries", LOCK_FRAMES(NAME_LOCK)
    "_raw_spin_lock_irq", "native_queued_spin_lock_slowpath"};

#define CACHE_SLOTS 64
#define CLUSTER_SHIFT 9
#define XA_SHIFT 14
#define CLUSTERS (((SLOTS - 1) >> CLUSTER_SHIFT) + 1)
#define XA_TREES (((SLOTS - 1) >> XA_SHIFT) + 1)

static struct lock_class lru_class, pool_class, tree_class, cluster_class, si_class, xa_class;
static struct lock lru_lock[NODES], pool_lock[ZPOOLS], tree_lock, cluster_lock[CLUSTERS], si_lock, xa_lock[XA_TREES];

static struct line swap_line[THREADS], root_swap_line, memory_line[THREADS], root_memory_line;
static struct line zpool_line[(ZPOOLS + 3) / 4], pages_line[ZPOOLS];
static struct line stored_line, kref_line, total_line, nr_swap_line;
static i64 swap[THREADS], root_swap, memory[THREADS], root_memory, stored, kref, total_size, nr_swap;

static i64 open_zspage[KINDS]; /* a kind is a size class of one pool */
static i64 *pages_allocated, *kind_of_slot, *zspage_of_slot, *inuse, *size_of_kind, *pages_of_kind, *pool_of_kind;
static i64 cache[CPUS][CACHE_SLOTS], cached[CPUS], stock[CPUS];

static struct {
    i64 page, slot, n, kind, zspage, zpool, sum;
} saved[THREADS];

#define STEP_(n) \
    if (unlikely(t >= limit)) { me->step = n; goto later; } case n:
#define STEP(n) STEP_(n)
#define ORDERED STEP(__COUNTER__ + 1)

#define WORK(frame, ps) (t += (ps), profile[F(frame)] += (ps))
#define CALL(function) WORK(function, COST_##function)
#define TIMED(frame, expression) (before = t, t = (expression), profile[F(frame)] += t - before)

#define ADD(frame, variable, line, change) \
    do { ORDERED variable += (change); TIMED(frame, locked_access(&line, me, t)); } while (0)

#define TAKE_(lock, name, n) \
    do { \
        ORDERED TIMED(take_##name, locked_access(&(lock).line, me, t)); \
        if (!acquire(&(lock), tid, t, F_wait_##name)) { me->step = n; goto gone; } \
        if (0) { case n:; } \
    } while (0)
#define TAKE__(lock, name, n) TAKE_(lock, name, n)
#define TAKE(lock, name) TAKE__(lock, name, __COUNTER__ + 1)
#define RELEASE(frame, lock) \
    do { ORDERED TIMED(frame, release(&(lock), me, t)); limit = time_limit(tid); } while (0)

static i64 simulate(void)
{
    int live = THREADS, tid = next_thread(0, -1);
    for (;;) {
        struct thread *me = &threads[tid];
        i64 t = me->time, before, limit = time_limit(tid);
        i64 page = saved[tid].page, slot = saved[tid].slot, n = saved[tid].n, kind = saved[tid].kind;
        i64 zspage = saved[tid].zspage, zpool = saved[tid].zpool, sum = saved[tid].sum;
        switch (me->step) {
        case 0:
            for (page = first_page[tid]; page < first_page[tid + 1]; page++) {
                CALL(zap_pte_range);
                CALL(free_swap_and_cache);
                CALL(__swap_entry_free);
                TAKE(cluster_lock[page >> CLUSTER_SHIFT], cluster);
                WORK(__swap_entry_free, COST___swap_entry_free_locked);
                RELEASE(__swap_entry_free, cluster_lock[page >> CLUSTER_SHIFT]);
                CALL(free_swap_slot);
                cache[me->cpu][cached[me->cpu]] = page;
                if (cached[me->cpu] < CACHE_SLOTS - 1) {
                    cached[me->cpu]++;
                    continue;
                }
                CALL(swapcache_free_entries);
                TAKE(si_lock, si);
                for (n = 0; n < CACHE_SLOTS; n++) {
                    slot = cache[me->cpu][n];
                    CALL(swap_entry_free);
                    TAKE(cluster_lock[slot >> CLUSTER_SHIFT], cluster_again);
                    WORK(swap_entry_free, COST_dec_cluster_info_page);
                    RELEASE(swap_entry_free, cluster_lock[slot >> CLUSTER_SHIFT]);
                    CALL(__mem_cgroup_uncharge_swap);
                    CALL(lookup_swap_cgroup_id);
                    CALL(swap_cgroup_record);
                    CALL(page_counter_uncharge);
                    ADD(page_counter_uncharge, swap[tid], swap_line[tid], -1);
                    ADD(page_counter_uncharge, root_swap, root_swap_line, -1);
                    CALL(mem_cgroup_id_put_many);
                    CALL(swap_range_free);
                    ADD(swap_range_free, nr_swap, nr_swap_line, 1);
                    CALL(zswap_invalidate);
                    TAKE(tree_lock, tree);
                    CALL(zswap_rb_search);
                    CALL(rb_erase);
                    CALL(zswap_free_entry);
                    CALL(list_lru_del);
                    TAKE(lru_lock[me->node], lru);
                    WORK(list_lru_del, COST_list_del);
                    RELEASE(list_lru_del, lru_lock[me->node]);
                    kind = kind_of_slot[slot];
                    CALL(zpool_free);
                    CALL(zs_zpool_free);
                    CALL(zs_free);
                    TAKE(pool_lock[pool_of_kind[kind]], pool);
                    CALL(obj_free);
                    zspage = zspage_of_slot[slot];
                    if (--inuse[zspage] == 0) {
                        i64 reads = (pages_of_kind[kind] + OVERLAPPING_READS - 1) / OVERLAPPING_READS;
                        WORK(free_zspage, memory_ps[me->node][me->node] * reads);
                        for (i64 i = 0; i < pages_of_kind[kind]; i++) {
                            CALL(free_zspage);
                            CALL(free_unref_page);
                        }
                        ADD(free_zspage, pages_allocated[pool_of_kind[kind]], pages_line[pool_of_kind[kind]],
                            -pages_of_kind[kind]);
                        if (open_zspage[kind] == zspage)
                            open_zspage[kind] = -1;
                    }
                    RELEASE(zs_free, pool_lock[pool_of_kind[kind]]);
                    CALL(zswap_pool_put);
                    ADD(zswap_pool_put, kref, kref_line, -1);
                    CALL(obj_cgroup_uncharge_zswap);
                    CALL(refill_obj_stock);
                    stock[me->cpu] += size_of_kind[kind];
                    if (stock[me->cpu] > 4096) {
                        CALL(obj_cgroup_uncharge_pages);
                        WORK(uncharge_memory, COST_page_counter_uncharge);
                        ADD(uncharge_memory, memory[tid], memory_line[tid], -1);
                        ADD(uncharge_memory, root_memory, root_memory_line, -1);
                        stock[me->cpu] -= 4096;
                    }
                    CALL(kmem_cache_free);
                    CALL(__slab_free);
                    ADD(zswap_free_entry, stored, stored_line, -1);
#if EAGER
                    sum = 0;
                    for (zpool = 0; zpool < ZPOOLS; zpool++) {
                        CALL(zpool_get_total_size);
                        ORDERED TIMED(zpool_get_total_size, read_line(&zpool_line[zpool / 4], me, t));
                        CALL(zs_zpool_total_size);
                        ORDERED sum += pages_allocated[zpool];
                        TIMED(zs_zpool_total_size, read_line(&pages_line[zpool], me, t));
                        CALL(zswap_update_total_size);
                    }
                    ORDERED total_size = sum;
                    TIMED(zswap_update_total_size, write_line(&total_line, me, t));
#endif
                    RELEASE(zswap_invalidate, tree_lock);
                    CALL(clear_shadow_from_swap_cache);
                    TAKE(xa_lock[slot >> XA_SHIFT], xa);
                    CALL(xas_load);
                    CALL(xas_store);
                    RELEASE(clear_shadow_from_swap_cache, xa_lock[slot >> XA_SHIFT]);
                }
                RELEASE(swapcache_free_entries, si_lock);
                cached[me->cpu] = 0;
            }
            CALL(drain_slots_cache_cpu);
            WORK(drain_free_entries, COST_swapcache_free_entries);
            TAKE(si_lock, si_drain); /* and finds nothing to free: pages are a multiple of CACHE_SLOTS */
            RELEASE(drain_free_entries, si_lock);
            ORDERED if (--live == 0) return t;
        }
    gone:
        t = -1;
    later:
        saved[tid].page = page, saved[tid].slot = slot, saved[tid].n = n, saved[tid].kind = kind;
        saved[tid].zspage = zspage, saved[tid].zpool = zpool, saved[tid].sum = sum;
        tid = next_thread(tid, t);
    }
}

static i64 *read_numbers(FILE *file, size_t count)
{
    i64 *numbers = malloc(count * sizeof *numbers);
    if (!numbers || fread(numbers, sizeof *numbers, count, file) != count)
        exit(2);
    return numbers;
}

static void init_lines(struct line *lines, int count)
{
    for (int i = 0; i < count; i++)
        init_line(&lines[i]);
}

static void init_locks(struct lock *locks, int count, struct lock_class *class)
{
    for (int i = 0; i < count; i++)
        init_lock(&locks[i], class);
}

int main(int argc, char **argv)
{
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (!file)
        return 2;
    kind_of_slot = read_numbers(file, SLOTS);
    zspage_of_slot = read_numbers(file, SLOTS);
    inuse = read_numbers(file, ZSPAGES);
    pages_allocated = read_numbers(file, ZPOOLS);
    size_of_kind = read_numbers(file, KINDS);
    pages_of_kind = read_numbers(file, KINDS);
    pool_of_kind = read_numbers(file, KINDS);
    for (int i = 0; i < KINDS; i++)
        open_zspage[i] = -1;
    init_threads();
    init_locks(lru_lock, NODES, &lru_class);
    init_locks(pool_lock, ZPOOLS, &pool_class);
    init_locks(&tree_lock, 1, &tree_class);
    init_locks(cluster_lock, CLUSTERS, &cluster_class);
    init_locks(&si_lock, 1, &si_class);
    init_locks(xa_lock, XA_TREES, &xa_class);
    struct { struct line *lines; int count; } all[] = {
        {swap_line, THREADS}, {&root_swap_line, 1}, {memory_line, THREADS}, {&root_memory_line, 1},
        {zpool_line, (ZPOOLS + 3) / 4}, {pages_line, ZPOOLS}, {&stored_line, 1}, {&kref_line, 1}, {&total_line, 1},
        {&nr_swap_line, 1}};
    int groups = sizeof all / sizeof all[0];
    for (int g = 0; g < groups; g++)
        init_lines(all[g].lines, all[g].count);

    double start = seconds();
    i64 end = simulate();
    double real = seconds() - start;

    i64 transfers = 0, ps = 0;
    for (int g = 0; g < groups; g++)
        for (int i = 0; i < all[g].count; i++)
            add_line_totals(&all[g].lines[i], &transfers, &ps);
    struct { const char *name; struct lock *locks; int count; } locks[] = {
        {"list_lru lock", lru_lock, NODES}, {"zs_pool lock", pool_lock, ZPOOLS}, {"zswap_tree->lock", &tree_lock, 1},
        {"swap_cluster_info lock", cluster_lock, CLUSTERS}, {"swap_info_struct->lock", &si_lock, 1},
        {"swap cache xa_lock", xa_lock, XA_TREES}};
    for (int g = 0; g < 6; g++) {
        for (int i = 0; i < locks[g].count; i++)
            add_line_totals(&locks[g].locks[i].line, &transfers, &ps);
        print_class(locks[g].name, locks[g].locks[0].class);
    }
    printf("real %.9f\nend %" PRId64 "\nvalue %" PRId64 "\n", real, end, total_size);
    printf("lines %" PRId64 " %" PRId64 "\n", transfers, ps);
    print_profile(symbols);
    return 0;
}
