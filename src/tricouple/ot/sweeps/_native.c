/* Small batches spend their time between PyTorch operations, not in them: a sweep of 256 samples is
 * twenty calls for a few microseconds of arithmetic. Here a whole run of sweeps, or its adjoint, is
 * one call. Optional: without a compiler the package works the same through PyTorch.
 *
 * Every function takes the size of its floating-point type in bytes, sizes and options, then the
 * addresses of contiguous arrays; native.py is the only caller and allocates all of them.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* The loops that matter are built twice, and the machine picks: distributed builds may not assume
 * more than SSE2. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#define FAST_LOOP __attribute__((target_clones("arch=x86-64-v3", "avx2", "default")))
#else
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

#define real float
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
#undef real
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
#undef real
#undef bits
#undef REAL_MAX
#undef NAME

#define MAX_ARRAYS 24

/* Read `count` addresses from position `first` of the arguments. */
static int addresses(PyObject *const *args, Py_ssize_t nargs, Py_ssize_t first, Py_ssize_t count,
                     void **out) {
    if (nargs != first + count) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", first + count, nargs);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) out[i] = PyLong_AsVoidPtr(args[first + i]);
    return !PyErr_Occurred();
}

static PyObject *balance(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    void *p[MAX_ARRAYS];
    if (!addresses(args, nargs, 5, 4, p)) return NULL;
    long bytes = PyLong_AsLong(args[0]), n = PyLong_AsLong(args[1]), m = PyLong_AsLong(args[2]);
    int within = (int)PyLong_AsLong(args[3]);
    double sharpness = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (bytes == 4)
        balance_float(n, m, within, sharpness, p[0], p[1], p[2], p[3]);
    else
        balance_double(n, m, within, sharpness, p[0], p[1], p[2], p[3]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *triplet_solve(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    void *p[MAX_ARRAYS];
    if (!addresses(args, nargs, 10, 13, p)) return NULL;
    long bytes = PyLong_AsLong(args[0]), n = PyLong_AsLong(args[1]), m = PyLong_AsLong(args[2]);
    int within = (int)PyLong_AsLong(args[3]);
    long n_iters = PyLong_AsLong(args[4]), done;
    double tol = PyFloat_AsDouble(args[5]), sharpness = PyFloat_AsDouble(args[6]);
    double eps = PyFloat_AsDouble(args[7]), cancellation = PyFloat_AsDouble(args[8]);
    double limit = PyFloat_AsDouble(args[9]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (bytes == 4)
        done = triplet_solve_float(n, m, within, n_iters, tol, sharpness, eps, cancellation, limit,
                                   p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9],
                                   p[10], p[11], p[12]);
    else
        done = triplet_solve_double(n, m, within, n_iters, tol, sharpness, eps, cancellation, limit,
                                    p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9],
                                    p[10], p[11], p[12]);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(done);
}

static PyObject *triplet_adjoint(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    void *p[MAX_ARRAYS];
    if (!addresses(args, nargs, 5, 20, p)) return NULL;
    long bytes = PyLong_AsLong(args[0]), n = PyLong_AsLong(args[1]), m = PyLong_AsLong(args[2]);
    int within = (int)PyLong_AsLong(args[3]);
    long sweeps = PyLong_AsLong(args[4]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (bytes == 4)
        triplet_adjoint_float(n, m, within, sweeps, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7],
                              p[8], p[9], p[10], p[11], p[12], p[13], p[14], p[15], p[16], p[17],
                              p[18], p[19]);
    else
        triplet_adjoint_double(n, m, within, sweeps, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7],
                               p[8], p[9], p[10], p[11], p[12], p[13], p[14], p[15], p[16], p[17],
                               p[18], p[19]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *pair_sweeps(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    void *p[MAX_ARRAYS];
    if (!addresses(args, nargs, 5, 7, p)) return NULL;
    long bytes = PyLong_AsLong(args[0]), n = PyLong_AsLong(args[1]), m = PyLong_AsLong(args[2]);
    long n_iters = PyLong_AsLong(args[3]), done;
    double tol = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (bytes == 4)
        done = pair_sweeps_float(n, m, n_iters, tol, p[0], p[1], p[2], p[3], p[4], p[5], p[6]);
    else
        done = pair_sweeps_double(n, m, n_iters, tol, p[0], p[1], p[2], p[3], p[4], p[5], p[6]);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(done);
}

static PyObject *pair_adjoint(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    void *p[MAX_ARRAYS];
    if (!addresses(args, nargs, 4, 10, p)) return NULL;
    long bytes = PyLong_AsLong(args[0]), n = PyLong_AsLong(args[1]), m = PyLong_AsLong(args[2]);
    long sweeps = PyLong_AsLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (bytes == 4)
        pair_adjoint_float(n, m, sweeps, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9]);
    else
        pair_adjoint_double(n, m, sweeps, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8],
                            p[9]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *tile_tops(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    void *p[MAX_ARRAYS];
    if (!addresses(args, nargs, 6, 3, p)) return NULL;
    long bytes = PyLong_AsLong(args[0]);
    long rows = PyLong_AsLong(args[1]);
    long width = PyLong_AsLong(args[2]);
    long own = PyLong_AsLong(args[3]);
    long offset = PyLong_AsLong(args[4]);
    long n = PyLong_AsLong(args[5]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (bytes == 4)
        tile_tops_float(rows, width, own, offset, n, p[0], p[1], p[2]);
    else
        tile_tops_double(rows, width, own, offset, n, p[0], p[1], p[2]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *tile_kernel(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    void *p[MAX_ARRAYS];
    if (!addresses(args, nargs, 6, 4, p)) return NULL;
    long bytes = PyLong_AsLong(args[0]);
    long rows = PyLong_AsLong(args[1]);
    long width = PyLong_AsLong(args[2]);
    long own = PyLong_AsLong(args[3]);
    long offset = PyLong_AsLong(args[4]);
    double factor = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (bytes == 4)
        tile_kernel_float(rows, width, own, offset, factor, p[0], p[1], p[2], p[3]);
    else
        tile_kernel_double(rows, width, own, offset, factor, p[0], p[1], p[2], p[3]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *tiles_product(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    void *p[MAX_ARRAYS];
    if (!addresses(args, nargs, 3, 4, p)) return NULL;
    long bytes = PyLong_AsLong(args[0]);
    long count = PyLong_AsLong(args[1]);
    long n = PyLong_AsLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (bytes == 4)
        tiles_product_float(count, p[0], n, p[1], p[2], p[3]);
    else
        tiles_product_double(count, p[0], n, p[1], p[2], p[3]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *tile_stream(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    void *p[MAX_ARRAYS];
    if (!addresses(args, nargs, 7, 5, p)) return NULL;
    long bytes = PyLong_AsLong(args[0]);
    long rows = PyLong_AsLong(args[1]);
    long width = PyLong_AsLong(args[2]);
    long own = PyLong_AsLong(args[3]);
    long row = PyLong_AsLong(args[4]);
    long column = PyLong_AsLong(args[5]);
    double factor = PyFloat_AsDouble(args[6]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (bytes == 4)
        tile_stream_float(rows, width, own, row, column, factor, p[0], p[1], p[2], p[3], p[4]);
    else
        tile_stream_double(rows, width, own, row, column, factor, p[0], p[1], p[2], p[3],
                           p[4]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *tile_weigh(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    void *p[MAX_ARRAYS];
    if (!addresses(args, nargs, 5, 3, p)) return NULL;
    long bytes = PyLong_AsLong(args[0]), rows = PyLong_AsLong(args[1]);
    long width = PyLong_AsLong(args[2]), stride = PyLong_AsLong(args[3]);
    double sign = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (bytes == 4)
        tile_weigh_float(rows, width, stride, sign, p[0], p[1], p[2]);
    else
        tile_weigh_double(rows, width, stride, sign, p[0], p[1], p[2]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"balance", (PyCFunction)(void (*)(void))balance, METH_FASTCALL, NULL},
    {"triplet_solve", (PyCFunction)(void (*)(void))triplet_solve, METH_FASTCALL, NULL},
    {"triplet_adjoint", (PyCFunction)(void (*)(void))triplet_adjoint, METH_FASTCALL, NULL},
    {"pair_sweeps", (PyCFunction)(void (*)(void))pair_sweeps, METH_FASTCALL, NULL},
    {"pair_adjoint", (PyCFunction)(void (*)(void))pair_adjoint, METH_FASTCALL, NULL},
    {"tile_tops", (PyCFunction)(void (*)(void))tile_tops, METH_FASTCALL, NULL},
    {"tile_kernel", (PyCFunction)(void (*)(void))tile_kernel, METH_FASTCALL, NULL},
    {"tiles_product", (PyCFunction)(void (*)(void))tiles_product, METH_FASTCALL, NULL},
    {"tile_stream", (PyCFunction)(void (*)(void))tile_stream, METH_FASTCALL, NULL},
    {"tile_weigh", (PyCFunction)(void (*)(void))tile_weigh, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods,
                                    NULL,                  NULL,      NULL, NULL};

/* Of the calls above, as native.py makes them: a module built from older sources is not used. */
enum { CALLS = 1 };

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *own = PyModule_Create(&module);
    if (own != NULL && PyModule_AddIntConstant(own, "CALLS", CALLS) < 0) Py_CLEAR(own);
    return own;
}
