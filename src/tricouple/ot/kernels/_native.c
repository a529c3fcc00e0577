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

#define real float
#define REAL_MAX FLT_MAX
#define NAME(name) name##_float
#include "_sweeps.h"
#undef real
#undef REAL_MAX
#undef NAME
#define real double
#define REAL_MAX DBL_MAX
#define NAME(name) name##_double
#include "_sweeps.h"
#undef real
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

static PyMethodDef methods[] = {
    {"balance", (PyCFunction)(void (*)(void))balance, METH_FASTCALL, NULL},
    {"triplet_solve", (PyCFunction)(void (*)(void))triplet_solve, METH_FASTCALL, NULL},
    {"triplet_adjoint", (PyCFunction)(void (*)(void))triplet_adjoint, METH_FASTCALL, NULL},
    {"pair_sweeps", (PyCFunction)(void (*)(void))pair_sweeps, METH_FASTCALL, NULL},
    {"pair_adjoint", (PyCFunction)(void (*)(void))pair_adjoint, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods,
                                    NULL,                  NULL,      NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
