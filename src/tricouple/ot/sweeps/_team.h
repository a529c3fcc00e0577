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

/* Calls, of which a thread does some in turn before it takes the next. */
typedef struct {
    call *calls;
    long number, in_turn;
    atomic_long next;
} work;

/* GOMP_parallel of the library that PyTorch has loaded (native.py finds it), or nothing. */
static void (*parallel)(void (*)(void *), void *, unsigned, unsigned);

/* Every thread takes the next calls until there are none. */
static void take(void *argument) {
    work *all = argument;
    for (long k; (k = atomic_fetch_add(&all->next, all->in_turn)) < all->number;)
        for (call *own = all->calls + k; own < all->calls + k + all->in_turn; own++) own->run(own);
}

static void together(call *calls, long number, long in_turn) {
    work all = {.calls = calls, .number = number, .in_turn = in_turn};
    if (number > in_turn && parallel) parallel(take, &all, (unsigned)(number / in_turn), 0);
    else take(&all);
}
