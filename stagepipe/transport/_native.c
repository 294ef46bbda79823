/* The frequent cases of four functions of a hop, in C. Each has a Python twin, which handles the other cases, and all
   cases without a compiler: `chunk.measure_plain`, `packet.pack_small`, `packet.unpack` and `PipeWaiter.read`. The
   results are the same, and the tests of the transport run with both. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "packets are little-endian; without this module the Python twins are used"
#endif

/* From packet.py: the prefix (checksum, time of the write) and the header of an entry, both without padding. */
enum { PACKET_BYTES = 4096, PREFIX_BYTES = 12, HEADER_BYTES = 40, BODY_OFFSET = PREFIX_BYTES + HEADER_BYTES };
enum { SENT_AT = 4, SENDER_NS = 12, KIND = 16, FLAGS = 17, PART_COUNT = 18, GENERATION = 20, SAMPLES = 24,
       BUFFER_COUNT = 28, META_BYTES = 30, ITEM = 32, PICKLE_BYTES = 40, COUNT = 44 };
/* From chunk.py. */
enum { MAX_PARTS = 64, ITEM_BYTES = 5, INT_BYTES = 7, FLOAT_BYTES = 9, STRING_BYTES = 6 };

static PyTypeObject *entry_type;
static PyObject *measure_in_python, *unpack_in_python, *kinds, *no_descriptors, *no_meta;

static uint64_t get(const uint8_t *data, int nbytes)
{
    uint64_t value = 0;
    memcpy(&value, data, nbytes);
    return value;
}

static void put(uint8_t *data, uint64_t value, int nbytes)
{
    memcpy(data, &value, nbytes);
}

/* ---------------------------------------------------------------- CRC-32 as zlib's, eight bytes at a time */

static uint32_t crc_tables[8][256];

static void fill_crc_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? 0xEDB88320u ^ (crc >> 1) : crc >> 1;
        crc_tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc_tables[table - 1][byte];
            crc_tables[table][byte] = (crc >> 8) ^ crc_tables[0][crc & 0xFF];
        }
}

static uint32_t crc32_of(const uint8_t *data, Py_ssize_t nbytes)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (; nbytes >= 8; data += 8, nbytes -= 8) {
        uint64_t word = get(data, 8) ^ crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++)
            crc ^= crc_tables[7 - byte][(word >> (8 * byte)) & 0xFF];
    }
    for (; nbytes > 0; data++, nbytes--)
        crc = (crc >> 8) ^ crc_tables[0][(crc ^ *data) & 0xFF];
    return crc ^ 0xFFFFFFFFu;
}

/* ---------------------------------------------------------------- measure_plain(item, below_bytes, max_bytes) */

static Py_ssize_t measure_text(PyObject *text)
{
    Py_ssize_t length = PyUnicode_GET_LENGTH(text);
    return STRING_BYTES + (PyUnicode_IS_ASCII(text) ? length : 4 * length);
}

/* -1: the twin decides. */
static Py_ssize_t measure_part(PyObject *part)
{
    if (PyLong_CheckExact(part)) {
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(part, &overflow);
        unsigned long long size = value < 0 ? 0ull - (unsigned long long)value : (unsigned long long)value;
        return overflow ? -1 : INT_BYTES + (size ? (64 - __builtin_clzll(size)) >> 3 : 0);
    }
    if (PyUnicode_CheckExact(part))
        return measure_text(part);
    if (PyFloat_CheckExact(part) || PyBool_Check(part) || part == Py_None)
        return FLOAT_BYTES;
    if (PyBytes_CheckExact(part))
        return STRING_BYTES + PyBytes_GET_SIZE(part);
    return -1;
}

static Py_ssize_t measure_item(PyObject *item)
{
    Py_ssize_t total = ITEM_BYTES, part_bytes = 0;
    if (PyDict_CheckExact(item)) {
        PyObject *name, *part;
        Py_ssize_t position = 0;
        if (PyDict_GET_SIZE(item) > MAX_PARTS)
            return -1;
        while (PyDict_Next(item, &position, &name, &part)) {
            if (!PyUnicode_CheckExact(name) || (part_bytes = measure_part(part)) < 0)
                return -1;
            total += measure_text(name) + part_bytes;
        }
        return total;
    }
    if (PyTuple_CheckExact(item) || PyList_CheckExact(item)) {
        Py_ssize_t count = PySequence_Fast_GET_SIZE(item);
        if (count > MAX_PARTS)
            return -1;
        for (Py_ssize_t index = 0; index < count; index++) {
            if ((part_bytes = measure_part(PySequence_Fast_GET_ITEM(item, index))) < 0)
                return -1;
            total += part_bytes;
        }
        return total;
    }
    part_bytes = measure_part(item);
    return part_bytes < 0 ? -1 : total + part_bytes;
}

static PyObject *measure_plain(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "measure_plain takes 3 arguments, got %zd", count);
    if (measure_in_python == NULL)
        return PyErr_Format(PyExc_RuntimeError, "set_up comes first");
    Py_ssize_t total = measure_item(arguments[0]);
    if (total < 0)
        return PyObject_Vectorcall(measure_in_python, arguments, count, NULL);
    Py_ssize_t max_bytes = PyLong_AsSsize_t(arguments[2]);
    if (max_bytes == -1 && PyErr_Occurred())
        return NULL;
    return PyLong_FromSsize_t(total <= max_bytes ? total : 0);
}

/* ---------------------------------------------------------------- pack_small(kind, generation, item, sender_ns, pickle_data, now_ns) */

static PyObject *pack_small(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    char *pickle;
    Py_ssize_t pickle_bytes;
    if (count != 6)
        return PyErr_Format(PyExc_TypeError, "pack_small takes 6 arguments, got %zd", count);
    unsigned long kind = PyLong_AsUnsignedLong(arguments[0]), generation = PyLong_AsUnsignedLong(arguments[1]);
    long long item = PyLong_AsLongLong(arguments[2]);
    unsigned long long sender_ns = PyLong_AsUnsignedLongLong(arguments[3]);
    unsigned long long now_ns = PyLong_AsUnsignedLongLong(arguments[5]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(arguments[4], &pickle, &pickle_bytes) < 0)
        return NULL;
    if (kind > UINT8_MAX || generation > UINT32_MAX || pickle_bytes > PACKET_BYTES - BODY_OFFSET)
        return PyErr_Format(PyExc_ValueError, "a packet of kind %lu, generation %lu with %zd bytes", kind, generation,
                            pickle_bytes);
    PyObject *packet = PyBytes_FromStringAndSize(NULL, BODY_OFFSET + pickle_bytes);
    if (packet == NULL)
        return NULL;
    uint8_t *data = (uint8_t *)PyBytes_AS_STRING(packet);
    memset(data, 0, BODY_OFFSET);
    put(data + SENT_AT, now_ns, 8);
    put(data + SENDER_NS, sender_ns < UINT32_MAX ? sender_ns : UINT32_MAX, 4);
    put(data + KIND, kind, 1);
    put(data + GENERATION, generation, 4);
    put(data + SAMPLES, 1, 4);
    put(data + ITEM, (uint64_t)item, 8);
    put(data + PICKLE_BYTES, (uint64_t)pickle_bytes, 4);
    put(data + COUNT, 1, 8);
    memcpy(data + BODY_OFFSET, pickle, pickle_bytes);
    put(data, crc32_of(data + KIND, BODY_OFFSET - KIND + pickle_bytes), 4);
    return packet;
}

/* ---------------------------------------------------------------- unpack(data) */

/* Return the only entry of a packet, if it has no parts, buffers or meta; NULL without an error: the twin decides. */
static PyObject *unpack_single(PyObject *packet)
{
    Py_ssize_t size = PyBytes_GET_SIZE(packet);
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(packet);
    if (size < BODY_OFFSET || get(data + PICKLE_BYTES, 4) != (uint64_t)(size - BODY_OFFSET)
        || get(data + PART_COUNT, 2) || get(data + BUFFER_COUNT, 2) || get(data + META_BYTES, 2)
        || crc32_of(data + KIND, size - KIND) != get(data, 4))
        return NULL;
    PyObject *kind = PyLong_FromLong(data[KIND]);
    int is_known = kind == NULL ? -1 : PySet_Contains(kinds, kind);
    Py_XDECREF(kind);
    if (is_known <= 0)
        return NULL;
    PyObject *arguments = Py_BuildValue(
        "((iik(L)kKkKnOO(nn)O))", data[KIND], data[FLAGS], (unsigned long)get(data + GENERATION, 4),
        (long long)get(data + ITEM, 8), (unsigned long)get(data + SAMPLES, 4), (unsigned long long)get(data + COUNT, 8),
        (unsigned long)get(data + SENDER_NS, 4), (unsigned long long)get(data + SENT_AT, 8), size - PREFIX_BYTES,
        no_descriptors, no_meta, (Py_ssize_t)BODY_OFFSET, size, packet);
    if (arguments == NULL)
        return NULL;
    PyObject *entry = PyTuple_Type.tp_new(entry_type, arguments, NULL);
    Py_DECREF(arguments);
    return entry;
}

static PyObject *unpack(PyObject *module, PyObject *packet)
{
    if (unpack_in_python == NULL)
        return PyErr_Format(PyExc_RuntimeError, "set_up comes first");
    PyObject *entry = PyBytes_CheckExact(packet) ? unpack_single(packet) : NULL;
    if (entry == NULL)
        return PyErr_Occurred() ? NULL : PyObject_CallOneArg(unpack_in_python, packet);
    PyObject *entries = PyList_New(1);
    if (entries == NULL)
        Py_DECREF(entry);
    else
        PyList_SET_ITEM(entries, 0, entry);
    return entries;
}

/* ---------------------------------------------------------------- read_ready(epoll_fd, fd, timeout_s) */

/* Return the next packet of a pipe, empty at the end of file; None if something else ended the wait. */
static PyObject *read_ready(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    char data[PACKET_BYTES];
    struct epoll_event events[2];
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "read_ready takes 3 arguments, got %zd", count);
    long epoll_fd = PyLong_AsLong(arguments[0]), fd = PyLong_AsLong(arguments[1]);
    double timeout_s = PyFloat_AsDouble(arguments[2]);
    if (PyErr_Occurred())
        return NULL;
    int timeout_ms = timeout_s < 0 ? 0 : timeout_s > 3600 ? 3600000 : (int)ceil(timeout_s * 1e3);
    int ready, error = 0;
    ssize_t nbytes = -1;
    Py_BEGIN_ALLOW_THREADS
    ready = epoll_wait((int)epoll_fd, events, 2, timeout_ms);
    if (ready == 1 && events[0].data.fd == fd)
        nbytes = read((int)fd, data, PACKET_BYTES);
    if (ready < 0 || (ready == 1 && events[0].data.fd == fd && nbytes < 0))
        error = errno;
    Py_END_ALLOW_THREADS
    if (nbytes >= 0)
        return PyBytes_FromStringAndSize(data, nbytes);
    if (error == EINTR && PyErr_CheckSignals())
        return NULL;
    if (error && error != EINTR && error != EAGAIN) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- the module */

/* set_up(Entry, kinds, measure_plain, unpack): the entry type, the known kinds, the twins. Called once per process. */
static PyObject *set_up(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 4 || !PyType_Check(arguments[0])
        || !PyType_IsSubtype((PyTypeObject *)arguments[0], &PyTuple_Type) || !PyAnySet_Check(arguments[1]))
        return PyErr_Format(PyExc_TypeError, "set_up takes a tuple type, a set and two functions");
    Py_XSETREF(entry_type, (PyTypeObject *)Py_NewRef(arguments[0]));
    Py_XSETREF(kinds, Py_NewRef(arguments[1]));
    Py_XSETREF(measure_in_python, Py_NewRef(arguments[2]));
    Py_XSETREF(unpack_in_python, Py_NewRef(arguments[3]));
    Py_RETURN_NONE;
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    FAST(set_up), FAST(measure_plain), FAST(pack_small), {"unpack", unpack, METH_O, NULL}, FAST(read_ready), {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "The frequent cases of four functions of a hop.", -1, methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    fill_crc_tables();
    no_descriptors = PyTuple_New(0);
    no_meta = PyBytes_FromStringAndSize(NULL, 0);
    return no_descriptors == NULL || no_meta == NULL ? NULL : PyModule_Create(&definition);
}
