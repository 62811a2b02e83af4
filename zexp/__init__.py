"""zexp: what will this memory-management policy cost on that machine, under that load?"""
