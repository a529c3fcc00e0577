/* The compiled half of the solver. PyTorch code computes the same where there is no compiler.
 * Formulas are those of docs/mathematics.md, named by section. Vectors are double, matrices `real`; all
 * arrays are contiguous, row-major and allocated by the caller. */
#ifdef Py_GIL_DISABLED
#error "a free-threaded Python has no limited API: there the package works through PyTorch"
#endif
#define Py_LIMITED_API 0x030B0000 /* one build for every Python from 3.11 on */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif

/* Loops that matter are built for several machines; the loader picks one. A checked build has each once. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define FAST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define INLINE static inline __attribute__((always_inline))
#else
#define FAST
#define INLINE static inline
#endif

static const double SERIES[] = {1, 1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320,
                                1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800};

/* log(e^x + e^y). */
INLINE double log_add(double x, double y) {
    const double high = x > y ? x : y, low = x > y ? y : x;
    return high > -INFINITY ? high + log1p(exp(low - high)) : high;
}

static double largest_size(const double *v, long m, long but) {
    double high = 0;
    for (long j = 0; j < m; j++) high = fabs(v[j]) > high && j != but ? fabs(v[j]) : high;
    return high > 0 ? high : 1;
}

/* Ask Python, from code that does not hold the interpreter's lock; NULL with an exception set if it fails. */
static void *ask(void *function, long first, long second) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *answer = PyErr_Occurred() ? NULL : PyObject_CallFunction((PyObject *)function, "ll", first, second);
    void *found = answer ? PyLong_AsVoidPtr(answer) : NULL;
    Py_XDECREF(answer);
    PyGILState_Release(state);
    return found;
}

/* What differs between the types; the headers are read once for each. */
#define real REAL(float, double)
#define bits REAL(uint32_t, uint64_t)
#define NAME(name) REAL(name##_float, name##_double)
#define DEGREE REAL(7, 13)
#define SHIFT REAL(12582912.0f, 6755399441055744.0) /* 1.5·2²³, 1.5·2⁵² */
#define MANTISSA REAL(23, 52)
#define BIAS REAL(127, 1023)
#define LN2_HIGH REAL(0.693359375f, 0.693147180369123816490)
#define LN2_LOW REAL(-2.12194440e-4f, 1.90821492927058770002e-10)
#define EXP_LOW REAL(-86.6f, -707.0)
#define LEAST REAL(1e-25, 1e-280) /* sums below this may have lost terms to underflow */
#define SMALLEST REAL(1e-37, 1e-300)

#define REAL(single, wide) single
#include "primitive.h"
#include "scaling.h"
#include "log_sigmoid.h"
#include "hinge.h"
#undef REAL
#define REAL(single, wide) wide
#include "primitive.h"
#include "scaling.h"
#include "log_sigmoid.h"
#include "hinge.h"

/* The size of the type in bytes, whole numbers, reals, then addresses (or functions that C may ask, or None). */
typedef struct {
    long bytes, i[8];
    double x[4];
    void *p[24];
} arguments;

static int read_arguments(PyObject *const *args, Py_ssize_t nargs, int integers, int reals, int arrays,
                          arguments *own) {
    const int expected = 1 + integers + reals + arrays;
    if (nargs != expected) return PyErr_Format(PyExc_TypeError, "expected %d arguments, got %zd", expected, nargs), 0;
    own->bytes = PyLong_AsLong(*args++);
    for (int k = 0; k < integers; k++) own->i[k] = PyLong_AsLong(*args++);
    for (int k = 0; k < reals; k++) own->x[k] = PyFloat_AsDouble(*args++);
    for (int k = 0; k < arrays; k++, args++)
        own->p[k] = *args == Py_None ? NULL : PyLong_Check(*args) ? PyLong_AsVoidPtr(*args) : (void *)*args;
    return !PyErr_Occurred();
}

/* A function of this module: the one of that name for the type, without the interpreter's lock. */
#define METHOD(name, integers, reals, arrays, ...)                                                   \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {                 \
        arguments own;                                                                               \
        long result;                                                                                 \
        if (!read_arguments(args, nargs, integers, reals, arrays, &own)) return NULL;                \
        const long *i = own.i;                                                                       \
        const double *x = own.x;                                                                     \
        void **p = ((void)x, own.p);                                                                 \
        Py_BEGIN_ALLOW_THREADS                                                                       \
        result = own.bytes == 4 ? name##_float(__VA_ARGS__) : name##_double(__VA_ARGS__);            \
        Py_END_ALLOW_THREADS                                                                         \
        return PyErr_Occurred() ? NULL : PyLong_FromLong(result);                                    \
    }

#define SEVEN p[0], p[1], p[2], p[3], p[4], p[5], p[6]
#define TEN SEVEN, p[7], p[8], p[9]
METHOD(update, 3, 1, 11, i[0], i[1], x[0], TEN, p[10], i[2])
METHOD(push, 3, 1, 13, i[0], i[1], x[0], TEN, p[10], p[11], p[12], i[2])
METHOD(kernel, 3, 2, 3, i[0], i[1], x[0], x[1], p[0], p[1], p[2], i[2])
METHOD(combine, 4, 0, 3, i[0], i[1], i[2], p[0], p[1], p[2], i[3])
METHOD(triplet_solve, 8, 2, 14, i, x, p)
METHOD(triplet_adjoint, 8, 0, 23, i, p)
METHOD(pair_solve, 8, 2, 11, i, x, p)
METHOD(pair_adjoint, 8, 0, 15, i, p)
METHOD(term_nodes, 5, 0, 10, i[0], i[1], i[2], i[3], i[4], TEN)
METHOD(term_push, 4, 0, 17, i[0], i[1], i[2], i[3], TEN, p[10], p[11], p[12], p[13], p[14], p[15], p[16])
METHOD(term_pass, 5, 0, 17, i[0], i[1], i[2], i[3], i[4], TEN, p[10], p[11], p[12], p[13], p[14], p[15], p[16])
METHOD(term_slopes, 6, 0, 15, i[0], i[1], i[2], i[3], i[4], i[5], TEN, p[10], p[11], p[12], p[13], p[14])
METHOD(pair_costs, 3, 0, 7, i[0], i[1], i[2], SEVEN)
METHOD(hinge_sort, 3, 3, 6, i[0], i[1], x[0], x[1], x[2], p[0], p[1], p[2], p[3], p[4], p[5], i[2])
METHOD(hinge_rows, 4, 3, 17, i[0], i[1], i[2], x[0], x[1], x[2], p, i[3])
METHOD(hinge_costs, 3, 2, 9, i[0], i[1], x[0], x[1], SEVEN, p[7], p[8], i[2])

/* Ask for huge pages, before the first touch: small ones cost a page fault every 4 KiB, more than a product. */
static PyObject *advise(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 2) return PyErr_Format(PyExc_TypeError, "expected 2 arguments, got %zd", nargs);
    const uintptr_t begin = (uintptr_t)PyLong_AsVoidPtr(args[0]);
    const long bytes = PyLong_AsLong(args[1]);
    if (PyErr_Occurred()) return NULL;
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 1 << 21, first = (begin + page - 1) & ~(page - 1);
    const long inside = (long)(begin + bytes - first);
    if (inside >= (long)page) madvise((void *)first, inside & ~(page - 1), MADV_HUGEPAGE);
#else
    (void)begin, (void)bytes;
#endif
    Py_RETURN_NONE;
}

#define ENTRY(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    ENTRY(update), ENTRY(push), ENTRY(kernel), ENTRY(combine), ENTRY(triplet_solve), ENTRY(triplet_adjoint),
    ENTRY(pair_solve), ENTRY(pair_adjoint), ENTRY(term_nodes), ENTRY(term_push), ENTRY(term_pass), ENTRY(term_slopes),
    ENTRY(pair_costs), ENTRY(hinge_sort), ENTRY(hinge_rows), ENTRY(hinge_costs), ENTRY(advise), {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

/* To be raised here and in native.py whenever a call changes: a module built from older sources is not used. */
enum { CALLS = 122 };

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *own = PyModule_Create(&module);
    if (own != NULL && PyModule_AddIntConstant(own, "CALLS", CALLS) < 0) Py_CLEAR(own);
    return own;
}
