/* Small batches spend their time between PyTorch operations, not in them: a sweep of 256 samples is
 * twenty calls for a few microseconds of arithmetic. Here a whole run of sweeps, or its adjoint, is
 * one call. Optional: without a compiler the package works the same through PyTorch.
 *
 * Every function takes the size of its floating-point type in bytes, then whole numbers, then real
 * ones, then the addresses of contiguous arrays; native.py and halves.py call them and allocate all of
 * the arrays. Formulas are those of docs/mathematics.md, named by their section.
 */
#ifdef Py_GIL_DISABLED
#error "a free-threaded Python knows no limited API: it works through PyTorch"
#endif
#define Py_LIMITED_API 0x030B0000 /* one build for every Python from 3.11 on */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "_team.h"

/* The loops that matter are built several times, and the machine picks: distributed builds may not assume
 * more than SSE2. The picking is glibc's; musl has none. A checked build has each loop once. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define FAST_LOOP __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "avx2", "default")))
#define INLINED static inline __attribute__((always_inline))
#else
#define INLINED static inline
#define FAST_LOOP
#endif

/* The larger of two numbers, and NaN if either is. */
#define MAXIMUM(x, y) ((y) <= (x) ? (x) : (y))

/* What exp() of a type needs: log 2 in two parts, and enough terms of the power series for all of
 * the type's digits on |x| ≤ log(2)/2. */
#define LOG2_E 1.4426950408889634
static const double SERIES[] = {1,          1.0,           1.0 / 2,        1.0 / 6,       1.0 / 24,
                                1.0 / 120,  1.0 / 720,     1.0 / 5040,     1.0 / 40320,   1.0 / 362880,
                                1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};

/* Sums of exponentials below this, which are at most 1, may have lost some to underflow; exponents up to
 * the other are as good in two factors. */
#define LITTLE 1e-20
#define STEEP 300

/* Plans whose gradients log_gradient adds at once, at most. */
enum { PLANS = 8 };

static inline double exponential_double(double x);

#define real float
#define score int32_t
#define bits uint32_t
#define REAL_MAX FLT_MAX
#define NAME(name) name##_float
#define DEGREE 7
#define SHIFT 12582912.0f /* 1.5 · 2²³ */
#define MANTISSA 23
#define EXPONENT_BIAS 127
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f
#define EXP_LOW -86.6 /* log(2 · FLT_MIN), nearly */
#include "_sweeps.h"
#include "_halves.h"
#include "_logs.h"
#include "_log_sigmoid.h"
#include "_hinge.h"
#undef real
#undef score
#undef bits
#undef REAL_MAX
#undef NAME
#undef DEGREE
#undef SHIFT
#undef MANTISSA
#undef EXPONENT_BIAS
#undef LN2_HIGH
#undef LN2_LOW
#undef EXP_LOW

#define real double
#define score double
#define bits uint64_t
#define REAL_MAX DBL_MAX
#define NAME(name) name##_double
#define DEGREE 13
#define SHIFT 6755399441055744.0 /* 1.5 · 2⁵² */
#define MANTISSA 52
#define EXPONENT_BIAS 1023
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#define EXP_LOW -707.7
#include "_sweeps.h"
#include "_halves.h"
#include "_logs.h"
#include "_log_sigmoid.h"
#include "_hinge.h"
#undef real
#undef score
#undef bits
#undef REAL_MAX
#undef NAME

/* Arguments of a call: the size of the type, then so many of each kind. */
static int read_arguments(PyObject *const *args, Py_ssize_t nargs, int integers, int reals, int arrays,
                          call *own) {
    const Py_ssize_t expected = 1 + integers + reals + arrays;
    if (nargs != expected) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", expected, nargs);
        return 0;
    }
    own->bytes = PyLong_AsLong(*args++);
    for (int k = 0; k < integers; k++) own->i[k] = PyLong_AsLong(*args++);
    for (int k = 0; k < reals; k++) own->x[k] = PyFloat_AsDouble(*args++);
    for (int k = 0; k < arrays; k++) own->p[k] = PyLong_AsVoidPtr(*args++);
    return !PyErr_Occurred();
}

/* The same of every tuple of a list. */
static int read_calls(PyObject *list, int integers, int reals, int arrays, void (*run)(call *),
                      Py_ssize_t number, call *calls) {
    PyObject *args[1 + INTEGERS + REALS + ARRAYS];
    for (Py_ssize_t k = 0; k < number; k++) {
        PyObject *tuple = PyList_GetItem(list, k);
        const Py_ssize_t nargs = tuple ? PyTuple_Size(tuple) : -1;
        if (nargs < 0) return 0;
        for (Py_ssize_t n = 0; n < nargs && n < 1 + INTEGERS + REALS + ARRAYS; n++)
            args[n] = PyTuple_GetItem(tuple, n);
        if (!read_arguments(args, nargs, integers, reals, arrays, &calls[k])) return 0;
        calls[k].run = run;
    }
    return 1;
}

/* A function of this module: reads its arguments, lets go of the interpreter's lock, and calls the
 * function of that name for the type, with the arguments that follow. A list of tuples of arguments is as
 * many calls, which threads share; a number beside it says how many of them one thread does in turn. */
#define DOOR(name, integers, reals, arrays, ...)                                                     \
    static void name##_run(call *own) {                                                              \
        const long *i = own->i;                                                                      \
        const double *x = own->x;                                                                    \
        void **p = own->p;                                                                           \
        (void)x;                                                                                     \
        own->result = own->bytes == 4 ? name##_float(__VA_ARGS__) : name##_double(__VA_ARGS__);      \
    }                                                                                                \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {                 \
        call one = {.run = name##_run};                                                              \
        if (nargs == 2) return shared(args, integers, reals, arrays, name##_run);                    \
        if (!read_arguments(args, nargs, integers, reals, arrays, &one)) return NULL;                \
        Py_BEGIN_ALLOW_THREADS                                                                       \
        one.run(&one);                                                                               \
        Py_END_ALLOW_THREADS                                                                         \
        return PyLong_FromLong(one.result);                                                          \
    }

static PyObject *shared(PyObject *const *args, int integers, int reals, int arrays, void (*run)(call *)) {
    const Py_ssize_t number = PyList_Size(args[0]);
    const long in_turn = PyLong_AsLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (in_turn < 1 || number % in_turn)
        return PyErr_Format(PyExc_ValueError, "%zd calls are not shared by %ld", number, in_turn);
    call *calls = number > 0 ? PyMem_Calloc(number, sizeof(call)) : NULL;
    if (!calls) return number ? PyErr_NoMemory() : Py_NewRef(Py_None);
    const int good = read_calls(args[0], integers, reals, arrays, run, number, calls);
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        together(calls, number, in_turn);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(calls);
    return good ? Py_NewRef(Py_None) : NULL;
}

DOOR(balance, 3, 1, 4, i[0], i[1], i[2], x[0], p[0], p[1], p[2], p[3])
DOOR(triplet_solve, 5, 5, 13, i[0], i[1], i[2], i[3], i[4], x[0], x[1], x[2], x[3], x[4], p[0], p[1], p[2],
     p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11], p[12])
DOOR(triplet_adjoint, 4, 0, 20, i[0], i[1], i[2], i[3], p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7],
     p[8], p[9], p[10], p[11], p[12], p[13], p[14], p[15], p[16], p[17], p[18], p[19])
DOOR(pair_sweeps, 4, 1, 7, i[0], i[1], i[2], i[3], x[0], p[0], p[1], p[2], p[3], p[4], p[5], p[6])
DOOR(pair_adjoint, 3, 0, 10, i[0], i[1], i[2], p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8],
     p[9])
DOOR(tile_tops, 6, 0, 3, i[0], i[1], i[2], i[3], i[4], i[5], p[0], p[1], p[2])
DOOR(tile_kernel, 5, 1, 3, i[0], i[1], i[2], i[3], i[4], x[0], p[0], p[1], p[2])
DOOR(tiles_product, 2, 0, 4, i[0], i[1], p[0], p[1], p[2], p[3])
DOOR(tile_stream, 5, 1, 5, i[0], i[1], i[2], i[3], i[4], x[0], p[0], p[1], p[2], p[3], p[4])
DOOR(tile_weigh, 3, 1, 3, i[0], i[1], i[2], x[0], p[0], p[1], p[2])
DOOR(log_rows, 3, 1, 6, i[0], i[1], i[2], x[0], p[0], p[1], p[2], p[3], p[4], p[5])
DOOR(log_columns, 3, 1, 9, i[0], i[1], i[2], x[0], p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8])
DOOR(log_means, 3, 1, 6, i[0], i[1], i[2], x[0], p[0], p[1], p[2], p[3], p[4], p[5])
DOOR(log_plan, 4, 1, 7, i[0], i[1], i[2], i[3], x[0], p[0], p[1], p[2], p[3], p[4], p[5], p[6])
DOOR(log_gradient, 5, 2, 8, i[0], i[1], i[2], i[3], i[4], x[0], x[1], p[0], p[1], p[2], p[3], p[4], p[5],
     p[6], p[7])
DOOR(term_pass, 7, 0, 15, i[0], i[1], i[2], i[3], i[4], i[5], i[6], p[0], p[1], p[2], p[3], p[4], p[5],
     p[6], p[7], p[8], p[9], p[10], p[11], p[12], p[13], p[14])
DOOR(term_slopes, 6, 0, 11, i[0], i[1], i[2], i[3], i[4], i[5], p[0], p[1], p[2], p[3], p[4], p[5],
     p[6], p[7], p[8], p[9], p[10])
DOOR(term_pairs, 4, 0, 9, i[0], i[1], i[2], i[3], p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8])
DOOR(pair_costs, 2, 0, 7, i[0], i[1], p[0], p[1], p[2], p[3], p[4], p[5], p[6])
DOOR(hinge_sort, 3, 2, 7, i[0], i[1], i[2], x[0], x[1], p[0], p[1], p[2], p[3], p[4], p[5], p[6])
DOOR(hinge_form, 4, 2, 14, i[0], i[1], i[2], i[3], x[0], x[1], p[0], p[1], p[2], p[3], p[4], p[5], p[6],
     p[7], p[8], p[9], p[10], p[11], p[12], p[13])
DOOR(hinge_costs, 3, 3, 9, i[0], i[1], i[2], x[0], x[1], x[2], p[0], p[1], p[2], p[3], p[4], p[5], p[6],
     p[7], p[8])

/* Share calls by this function from now on: the address of GOMP_parallel, or 0. */
static PyObject *use_team(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 1) return PyErr_Format(PyExc_TypeError, "expected 1 argument, got %zd", nargs);
    *(void **)&parallel = PyLong_AsVoidPtr(args[0]);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    METHOD(balance),     METHOD(triplet_solve), METHOD(triplet_adjoint), METHOD(pair_sweeps),
    METHOD(pair_adjoint), METHOD(tile_tops),    METHOD(tile_kernel),     METHOD(tiles_product),
    METHOD(tile_stream), METHOD(tile_weigh),    METHOD(log_rows),        METHOD(log_columns),
    METHOD(log_means),   METHOD(log_plan),      METHOD(log_gradient),    METHOD(term_pass),
    METHOD(term_slopes),  METHOD(pair_costs),      METHOD(hinge_sort),
    METHOD(hinge_form),  METHOD(hinge_costs),   METHOD(term_pairs),      METHOD(use_team),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods,
                                    NULL,                  NULL,      NULL, NULL};

/* Of the calls above, as native.py makes them: a module built from older sources is not used. */
enum { CALLS = 15 };

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *own = PyModule_Create(&module);
    if (own != NULL && PyModule_AddIntConstant(own, "CALLS", CALLS) < 0) Py_CLEAR(own);
    return own;
}
