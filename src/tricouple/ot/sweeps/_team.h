/* Calls that several threads share: those of PyTorch's own OpenMP team, if it is GNU's.
 *
 * Passes over a batch follow each other within microseconds, and to wake a thread takes longer than most of
 * them. OpenMP's threads wait awake for a while; threads of our own would compete with them for cores. */

#include <stdatomic.h>

/* The largest numbers of whole numbers, real numbers and arrays that a function takes. */
enum { INTEGERS = 7, REALS = 5, ARRAYS = 20 };

/* A call: which function for which size of numbers, its arguments and its result. */
typedef struct call {
    void (*run)(struct call *);
    long bytes, i[INTEGERS], result;
    double x[REALS];
    void *p[ARRAYS];
} call;

typedef struct {
    call *calls;
    long number;
    atomic_long next;
} work;

/* GOMP_parallel of the library that PyTorch has loaded (native.py finds it), or nothing. */
static void (*parallel)(void (*)(void *), void *, unsigned, unsigned);

/* Every thread takes the next call until there is none. */
static void take(void *argument) {
    work *all = argument;
    for (long k; (k = atomic_fetch_add(&all->next, 1)) < all->number;) all->calls[k].run(&all->calls[k]);
}

static void together(call *calls, long number) {
    work all = {.calls = calls, .number = number};
    if (number > 1 && parallel) parallel(take, &all, (unsigned)number, 0);
    else take(&all);
}
