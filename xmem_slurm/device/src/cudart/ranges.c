/* A table of address ranges that do not overlap, kept sorted by their start. Callers hold the memory lock. */
#include "runtime.h"

/* The index of the first range that starts after `address`. */
static size_t upper_bound(const struct ranges *table, uint64_t address) {
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table->items[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Returns 0, or 1 when there is no memory for the entry. */
int xmem_ranges_add(struct ranges *table, struct range range) {
    if (table->count == table->room) {
        size_t room = table->room ? 2 * table->room : 256;
        struct range *items = realloc(table->items, room * sizeof *items);
        if (!items)
            return 1;
        table->items = items;
        table->room = room;
    }
    size_t at = upper_bound(table, range.start);
    memmove(&table->items[at + 1], &table->items[at], (table->count - at) * sizeof range);
    table->items[at] = range;
    table->count++;
    return 0;
}

/* The range that holds `address`, or NULL. An empty range holds its start. */
struct range *xmem_ranges_find(struct ranges *table, uint64_t address) {
    size_t after = upper_bound(table, address);
    if (!after)
        return NULL;
    struct range *range = &table->items[after - 1];
    return address - range->start < range->size || address == range->start ? range : NULL;
}

void xmem_ranges_remove(struct ranges *table, struct range *range) {
    size_t at = (size_t)(range - table->items);
    table->count--;
    memmove(range, range + 1, (table->count - at) * sizeof *range);
}
