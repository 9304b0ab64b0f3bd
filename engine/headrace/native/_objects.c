/* The hot objects of a record in C: the same types as in `objects.py`, where their docstrings are.
 *
 * A field of an object is a reference at a fixed place, NULL until it is set, as a slot of a class in Python is. Classes in
 * Python derive from these types and add what is not hot; a call that is not the common case goes to one of their methods.
 * What lives as long as a record goes to a free list when nobody refers to it any more, and serves the next record.
 *
 * A function returns a new reference, or NULL with an exception, unless its comment says otherwise. Code of the user may run
 * when a reference is dropped, and may set any field: so what a function uses afterwards it holds by a reference of its own.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#ifdef Py_GIL_DISABLED
#error "this Python has no global lock, which this module relies on"
#endif

/* ------------------------------------------------------------------------------------------ objects and their fields */

typedef struct {
    PyObject_HEAD
    PyObject *context;
} RunningTask;

typedef struct {
    PyObject_HEAD
    PyObject *followers, *owner, *source, *task, *answer, *done;
} StateFuture;

typedef struct {
    PyObject_HEAD
    PyObject *future; /* NULL when it has ended */
    int has_waited;
} Waiter;

typedef struct {
    PyObject_HEAD
    PyObject *value, *stamp, *own_ttl, *stored, *dirty;
} Cell;

typedef struct {
    PyObject_HEAD
    PyObject *key_json, *record, *references, *owns_key, *epoch, *due_in, *call, *callbacks, *overdue, *awaited;
} RecordContext;

typedef struct {
    RecordContext base;
    PyObject *outputs, *timers, *function, *timer, *row_kind, *index, *order, *timestamp, *watermark, *expired_until;
} ProcessContext;

typedef struct {
    PyObject_HEAD
    PyObject *emitted, *insert, *main, *type;
} Outputs;

typedef struct {
    PyObject_HEAD
    PyObject *task, *cells, *ahead, *decode, *loading, *ttl, *done, *blocking, *add, *get_result;
    Py_ssize_t hits;
} ValueCells;

typedef struct {
    PyObject_HEAD
    PyObject *store, *suffix;
} CachedHandle;

typedef struct {
    PyObject_HEAD
    PyObject *task, *contexts, *outputs, *timers, *inputs, *kinds, *due, *before, *not_plain;
    Py_ssize_t late;
} RecordLoop;

static PyTypeObject *RunningTask_Type, *StateFuture_Type, *Waiter_Type, *Cell_Type, *RecordContext_Type, *ProcessContext_Type,
    *Outputs_Type, *ValueCells_Type, *CachedHandle_Type, *RecordLoop_Type;

/* A derived class inherits `tp_new`: comparing that takes less than the search of `PyObject_TypeCheck` among its bases. */
#define IS_A(object, Type) \
    ((object) != NULL && (Py_TYPE(object)->tp_new == Type##_new || PyObject_TypeCheck(object, Type##_Type)))
#define IS_EXACTLY(object, Type) ((object) != NULL && Py_IS_TYPE(object, Type##_Type))

static PyObject *ProcessContext_new(PyTypeObject *, PyObject *, PyObject *);

#define FIELD(Type, name, field) {name, T_OBJECT_EX, offsetof(Type, field), 0, NULL}
#define READ_ONLY(Type, name, field) {name, T_OBJECT_EX, offsetof(Type, field), READONLY, NULL}
#define COUNT(Type, name, field) {name, T_PYSSIZET, offsetof(Type, field), 0, NULL}
#define OPTIONAL(Type, name, field) {name, T_OBJECT, offsetof(Type, field), 0, NULL} /* None is NULL, too */
#define IS_NONE(field) ((field) == NULL || (field) == Py_None)
#define END_OF_FIELDS {NULL, 0, 0, 0, NULL}

/* Names of attributes that are looked up. */
#define NAMES(NAME) \
    NAME(__init_subclass__) NAME(_task) NAME(add_value) NAME(alive) NAME(awaiting) NAME(callbacks) NAME(context) NAME(end_of_code) \
    NAME(read_result) NAME(read_value) NAME(run_behind) NAME(set) NAME(taken) NAME(time_of) NAME(write_value)

#define AS_FIELD(name) PyObject *name;
static struct {
    NAMES(AS_FIELD)
} names;
#undef AS_FIELD

static PyObject *zero, *one;

/* Set a field, whose reference it takes. */
#define SET(field, object) Py_XSETREF(field, object)

/* ------------------------------------------------------------------------------------------ free lists, and the collector */

#define MOST_FREE 64

/* Memory of ended objects of one type, which may be a class in Python that adds no fields. */
typedef struct {
    PyTypeObject *type; /* NULL until the first one has ended */
    int count;
    PyObject *objects[MOST_FREE];
} FreeList;

static FreeList free_futures, free_contexts;

/* Make an object whose fields are NULL. */
static inline PyObject *
allocate(PyTypeObject *type, FreeList *list)
{
    if (list == NULL || list->type != type || list->count == 0) {
        return type->tp_alloc(type, 0);
    }
    PyObject *object = PyObject_Init(list->objects[--list->count], type);
    PyObject_GC_Track(object);
    return object;
}

/* Return whether the objects of a derived class have no more fields than this module knows, which have a size: no slots, no
 * `__dict__`, no weak references, and nothing that runs at their end. */
static inline int
has_no_more(PyTypeObject *type, Py_ssize_t size)
{
    return type->tp_basicsize == size && type->tp_dictoffset == 0 && type->tp_weaklistoffset == 0 && type->tp_finalize == NULL;
}

/* Keep the memory of an object of a size, without fields, if there is room, or free it. */
static inline void
put_back(PyObject *object, Py_ssize_t size, FreeList *list)
{
    PyTypeObject *type = Py_TYPE(object);
    if (list != NULL && list->type == NULL && has_no_more(type, size)) {
        list->type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    }
    if (list != NULL && list->type == type && type->tp_finalize == NULL && list->count < MOST_FREE) {
        list->objects[list->count++] = object;
    }
    else {
        type->tp_free(object);
    }
}

/* The fields of an object lie side by side, from the end of its head up to `end`. */
#define FIRST_FIELD(object) ((PyObject **)((object) + 1))

static int
visit_fields(PyObject *object, size_t end, visitproc visit, void *arg)
{
    for (PyObject **field = FIRST_FIELD(object); (char *)field < (char *)object + end; field++) {
        Py_VISIT(*field);
    }
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static void
clear_fields(PyObject *object, size_t end)
{
    for (PyObject **field = FIRST_FIELD(object); (char *)field < (char *)object + end; field++) {
        Py_CLEAR(*field);
    }
}

/* Define how objects of a type begin and end, and what the collector calls. `end` is the place behind their references. */
#define LIFE_OF(Type, end, list) \
    static PyObject *Type##_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs)) \
    { \
        return allocate(type, list); \
    } \
    static int Type##_traverse(PyObject *self, visitproc visit, void *arg) { return visit_fields(self, end, visit, arg); } \
    static int Type##_clear(PyObject *self) { clear_fields(self, end); return 0; } \
    static void Type##_dealloc(PyObject *self) \
    { \
        PyTypeObject *type = Py_TYPE(self); \
        if (type->tp_finalize != NULL && PyObject_CallFinalizerFromDealloc(self) < 0) { \
            return; /* a `__del__` that the class got later has revived it */ \
        } \
        PyObject_GC_UnTrack(self); \
        Py_TRASHCAN_BEGIN(self, Type##_dealloc) /* a chain of objects may be long */ \
        clear_fields(self, end); \
        put_back(self, sizeof(Type), list); \
        Py_DECREF(type); \
        Py_TRASHCAN_END \
    }

#define LIFE_SLOTS(Type) \
    {Py_tp_new, Type##_new}, {Py_tp_traverse, Type##_traverse}, {Py_tp_clear, Type##_clear}, {Py_tp_dealloc, Type##_dealloc}

#define BASE Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE

/* ------------------------------------------------------------------------------------------ methods of derived classes */

#define WITH_NAMES METH_FASTCALL | METH_KEYWORDS
#define FUNCTION(function) (PyCFunction)(void (*)(void))(function)

/* Call `super().__init_subclass__`. */
static PyObject *
init_subclass(PyTypeObject *base, PyObject *class, PyObject *kwargs)
{
    PyObject *super = PyObject_CallFunctionObjArgs((PyObject *)&PySuper_Type, base, class, NULL);
    PyObject *method = super == NULL ? NULL : PyObject_GetAttr(super, names.__init_subclass__), *none = PyTuple_New(0);
    PyObject *result = method == NULL || none == NULL ? NULL : PyObject_Call(method, none, kwargs);
    Py_XDECREF(super);
    Py_XDECREF(method);
    Py_XDECREF(none);
    return result;
}

/* Return whether an attribute of a class is a method of C, or the copy that a derived class has of it. */
static int
is_copy(PyObject *attribute, PyMethodDef *method)
{
    return Py_IS_TYPE(attribute, &PyMethodDescr_Type) && ((PyMethodDescrObject *)attribute)->d_method == method;
}

/* `__init_subclass__`: make a derived class as fast as its base. It gets the methods of the base as its own, unless it has others:
 * CPython (3.11 to 3.14) calls a method of C at once on objects of the very class that it belongs to. Its objects end as those of the base
 * if they have no more fields. Both together save a twentieth of the framework's cost. */
static PyObject *
adopt(PyTypeObject *base, PyMethodDef *methods, PyObject *class, PyObject *kwargs)
{
    PyTypeObject *type = (PyTypeObject *)class;
    if (has_no_more(type, base->tp_basicsize)) {
        type->tp_dealloc = base->tp_dealloc;
    }
    if (base->tp_as_async != NULL && type->tp_as_async != NULL) {
        type->tp_as_async->am_send = base->tp_as_async->am_send; /* the one slot that a class does not inherit */
    }
    for (PyMethodDef *method = methods; !(method->ml_flags & METH_CLASS); method++) {
        PyObject *inherited = PyObject_GetAttrString(class, method->ml_name), *own = NULL;
        Py_ssize_t parents = PyTuple_GET_SIZE(type->tp_mro);
        for (Py_ssize_t place = 1; inherited != NULL && place < parents && is_copy(inherited, method); place++) {
            PyObject *parent = PyTuple_GET_ITEM(type->tp_mro, place); /* its override is behind the copy of another base */
            if (PyType_IsSubtype((PyTypeObject *)parent, base)) {
                Py_SETREF(inherited, PyObject_GetAttrString(parent, method->ml_name));
                own = inherited == NULL || is_copy(inherited, method) ? NULL : Py_NewRef(inherited);
            }
        }
        if (inherited != NULL && own == NULL && is_copy(inherited, method)) {
            own = PyDescr_NewMethod((PyTypeObject *)class, method);
        }
        int failed = own == NULL ? PyErr_Occurred() != NULL : PyObject_SetAttrString(class, method->ml_name, own) < 0;
        if (own != NULL && !failed && is_copy(own, method) && method->ml_flags & METH_COEXIST) { /* `__await__`, which `await` does not call */
            type->tp_as_async->am_await = base->tp_as_async->am_await;
        }
        Py_XDECREF(inherited);
        Py_XDECREF(own);
        if (failed) {
            return NULL;
        }
    }
    return init_subclass(base, class, kwargs);
}

/* Define `Type.__init_subclass__`, the last of the methods of a type. */
#define ADOPTED(Type) {"__init_subclass__", FUNCTION(Type##_init_subclass), METH_VARARGS | METH_KEYWORDS | METH_CLASS, NULL}
#define ADOPTS(Type) \
    static PyMethodDef Type##_methods[]; \
    static PyObject *Type##_init_subclass(PyObject *class, PyObject *Py_UNUSED(args), PyObject *kwargs) \
    { \
        return adopt(Type##_Type, Type##_methods, class, kwargs); \
    }

/* ------------------------------------------------------------------------------------------ RunningTask */

LIFE_OF(RunningTask, sizeof(RunningTask), NULL)

static PyMemberDef RunningTask_members[] = {FIELD(RunningTask, "context", context), END_OF_FIELDS};

static PyType_Slot RunningTask_slots[] = {
    {Py_tp_members, RunningTask_members}, LIFE_SLOTS(RunningTask), {0, NULL}};

static PyType_Spec RunningTask_spec = {
    "headrace.native._objects.RunningTask", sizeof(RunningTask), 0, BASE, RunningTask_slots};

/* ------------------------------------------------------------------------------------------ Waiter: `await` of a future */

/* Return whether callbacks wait in the record that runs: 1, 0, or -1 with an exception. */
static int
callbacks_wait(StateFuture *future)
{
    if (IS_A(future->task, RunningTask)) {
        PyObject *context = ((RunningTask *)future->task)->context;
        if (IS_A(context, ProcessContext) && IS_NONE(((RecordContext *)context)->callbacks)) {
            return 0;
        }
    }
    PyObject *task = PyObject_GetAttr((PyObject *)future, names._task);
    PyObject *context = task == NULL ? NULL : PyObject_GetAttr(task, names.context);
    PyObject *callbacks = context == NULL ? NULL : PyObject_GetAttr(context, names.callbacks);
    int wait = callbacks == NULL ? -1 : PyObject_IsTrue(callbacks);
    Py_XDECREF(task);
    Py_XDECREF(context);
    Py_XDECREF(callbacks);
    return wait;
}

/* Return whether an `await` of a future has to wait: 1, 0, or -1 with an exception. */
static int
future_waits(StateFuture *future)
{
    return future->done == Py_True ? callbacks_wait(future) : 1;
}

/* Return the answer of a future. */
static PyObject *
answer_of(StateFuture *future)
{
    if (future->answer == NULL) {
        PyErr_SetString(PyExc_AttributeError, "answer");
    }
    return Py_XNewRef(future->answer);
}

/* Raise the `StopIteration` by which an iterator returns a value. Takes the reference; NULL stands for another error. */
static PyObject *
stop_with(PyObject *value)
{
    PyObject *stop = value == NULL ? NULL : PyObject_CallOneArg(PyExc_StopIteration, value);
    if (stop != NULL) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    Py_XDECREF(value);
    return NULL;
}

/* Go on with an `await` of a future that had to wait: yield the future once, unless it has its answer by then. */
static PySendResult
Waiter_send(PyObject *self, PyObject *Py_UNUSED(sent), PyObject **result)
{
    Waiter *waiter = (Waiter *)self;
    StateFuture *future = (StateFuture *)waiter->future;
    waiter->future = NULL;
    *result = NULL;
    if (future == NULL) {
        *result = Py_NewRef(Py_None);
        return PYGEN_RETURN;
    }
    int waits = waiter->has_waited ? 0 : future_waits(future);
    if (waits > 0) {
        waiter->has_waited = 1;
        waiter->future = Py_NewRef((PyObject *)future);
        *result = (PyObject *)future;
        return PYGEN_NEXT;
    }
    *result = waits < 0 ? NULL : answer_of(future);
    Py_DECREF(future);
    return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

static PyObject *
Waiter_next(PyObject *self)
{
    PyObject *result;
    return Waiter_send(self, Py_None, &result) == PYGEN_NEXT ? result : stop_with(result);
}

static PyObject *
Waiter_send_called(PyObject *self, PyObject *Py_UNUSED(sent))
{
    return Waiter_next(self);
}

static PyMethodDef Waiter_methods[] = {{"send", Waiter_send_called, METH_O, NULL}, {NULL, NULL, 0, NULL}};

LIFE_OF(Waiter, offsetof(Waiter, has_waited), NULL)

static PyType_Slot Waiter_slots[] = {
    {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, Waiter_next}, {Py_am_send, Waiter_send}, {Py_tp_methods, Waiter_methods},
    LIFE_SLOTS(Waiter), {0, NULL}};

static PyType_Spec Waiter_spec = {
    "headrace.native._objects.Waiter", sizeof(Waiter), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, Waiter_slots};

/* ------------------------------------------------------------------------------------------ StateFuture */

/* `__await__` where code calls it, for a `yield from`, which takes only what has an `__iter__`. */
static PyObject *
StateFuture_await_called(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Waiter *waiter = PyObject_GC_New(Waiter, Waiter_Type);
    if (waiter != NULL) {
        waiter->future = Py_NewRef(self);
        waiter->has_waited = 0;
        PyObject_GC_Track(waiter);
    }
    return (PyObject *)waiter;
}

/* `await`. A future that need not wait is its own iterator, which returns the answer at once. */
static PyObject *
StateFuture_await(PyObject *self)
{
    int waits = future_waits((StateFuture *)self);
    return waits < 0 ? NULL : waits == 0 ? Py_NewRef(self) : StateFuture_await_called(self, NULL);
}

/* Go on with an `await`: with this slot, an answer is no `StopIteration`. */
static PySendResult
StateFuture_send(PyObject *self, PyObject *Py_UNUSED(sent), PyObject **result)
{
    *result = answer_of((StateFuture *)self);
    return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

static PyObject *
StateFuture_next(PyObject *self)
{
    return stop_with(answer_of((StateFuture *)self));
}

LIFE_OF(StateFuture, sizeof(StateFuture), &free_futures)

static PyMemberDef StateFuture_members[] = {
    FIELD(StateFuture, "_followers", followers), FIELD(StateFuture, "_owner", owner), FIELD(StateFuture, "_source", source),
    FIELD(StateFuture, "_task", task), FIELD(StateFuture, "answer", answer), FIELD(StateFuture, "done", done), END_OF_FIELDS};

ADOPTS(StateFuture)

static PyMethodDef StateFuture_methods[] = {
    {"__await__", StateFuture_await_called, METH_NOARGS | METH_COEXIST, "Return an iterator, which returns the answer."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Return the type with a parameter."}, ADOPTED(StateFuture),
    {NULL, NULL, 0, NULL}};

static PyType_Slot StateFuture_slots[] = {
    {Py_tp_members, StateFuture_members}, {Py_tp_methods, StateFuture_methods},
    {Py_am_await, StateFuture_await}, {Py_am_send, StateFuture_send}, {Py_tp_iternext, StateFuture_next}, LIFE_SLOTS(StateFuture), {0, NULL}};

static PyType_Spec StateFuture_spec = {
    "headrace.native._objects.StateFuture", sizeof(StateFuture), 0, BASE, StateFuture_slots};

/* ------------------------------------------------------------------------------------------ Cell */

static int
Cell_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *words[] = {"value", "stamp", "own_ttl", "stored", "dirty", NULL};
    PyObject *value, *stamp, *own_ttl = zero, *stored = NULL, *dirty = Py_False;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O$OO:Cell", words, &value, &stamp, &own_ttl, &stored, &dirty)) {
        return -1;
    }
    if (stored == NULL) {
        PyErr_SetString(PyExc_TypeError, "Cell() needs the argument 'stored'");
        return -1;
    }
    Cell *cell = (Cell *)self;
    SET(cell->value, Py_NewRef(value));
    SET(cell->stamp, Py_NewRef(stamp));
    SET(cell->own_ttl, Py_NewRef(own_ttl));
    SET(cell->stored, Py_NewRef(stored));
    SET(cell->dirty, Py_NewRef(dirty));
    return 0;
}

/* Write a value of a state without TTL. */
static void
write_cell(Cell *cell, PyObject *value, PyObject *timestamp)
{
    SET(cell->stamp, Py_XNewRef(timestamp));
    SET(cell->own_ttl, Py_NewRef(zero));
    SET(cell->dirty, Py_NewRef(Py_True));
    SET(cell->value, Py_NewRef(value));
}

LIFE_OF(Cell, sizeof(Cell), NULL)

#define HEADER_SIZE 16

/* Read a number of 8 bytes, of which the first counts most. */
static PyObject *
number_at(const unsigned char *bytes)
{
    uint64_t number = 0;
    for (int place = 0; place < 8; place++) {
        number = number << 8 | bytes[place];
    }
    return number == 0 ? Py_NewRef(zero) : PyLong_FromLongLong((long long)number);
}

/* Return a cell of a backend's value, or of None. */
static PyObject *
cell_of(PyObject *stored, PyObject *decode)
{
    if (stored != Py_None && (!PyBytes_Check(stored) || PyBytes_GET_SIZE(stored) < HEADER_SIZE)) {
        return PyErr_Format(PyExc_ValueError, "%R is no stored value", stored);
    }
    Cell *cell = (Cell *)Cell_new(Cell_Type, NULL, NULL);
    if (cell == NULL) {
        return NULL;
    }
    cell->dirty = Py_NewRef(Py_False);
    if (stored == Py_None) {
        cell->value = Py_NewRef(Py_None);
        cell->stamp = Py_NewRef(zero);
        cell->own_ttl = Py_NewRef(zero);
        cell->stored = Py_NewRef(Py_False);
        return (PyObject *)cell;
    }
    const char *bytes = PyBytes_AS_STRING(stored);
    cell->stamp = number_at((const unsigned char *)bytes);
    cell->own_ttl = number_at((const unsigned char *)bytes + HEADER_SIZE / 2);
    cell->stored = Py_NewRef(Py_True);
    PyObject *raw = PyBytes_FromStringAndSize(bytes + HEADER_SIZE, PyBytes_GET_SIZE(stored) - HEADER_SIZE);
    cell->value = raw == NULL ? NULL : PyObject_CallOneArg(decode, raw);
    Py_XDECREF(raw);
    if (cell->value == NULL || cell->stamp == NULL || cell->own_ttl == NULL) {
        Py_DECREF(cell);
        return NULL;
    }
    return (PyObject *)cell;
}

static PyObject *
Cell_all_of(PyObject *Py_UNUSED(class), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        return PyErr_Format(PyExc_TypeError, "all_of() takes 2 arguments, not %zd", count);
    }
    PyObject *stored = PySequence_Tuple(args[0]); /* `decode` may run code that changes a list */
    PyObject *cells = stored == NULL ? NULL : PyList_New(PyTuple_GET_SIZE(stored));
    for (Py_ssize_t place = 0; cells != NULL && place < PyTuple_GET_SIZE(stored); place++) {
        PyObject *cell = cell_of(PyTuple_GET_ITEM(stored, place), args[1]);
        if (cell == NULL) {
            Py_CLEAR(cells);
            break;
        }
        PyList_SET_ITEM(cells, place, cell);
    }
    Py_XDECREF(stored);
    return cells;
}

static PyMethodDef Cell_methods[] = {
    {"all_of", FUNCTION(Cell_all_of), METH_FASTCALL | METH_STATIC, NULL}, {NULL, NULL, 0, NULL}};

static PyMemberDef Cell_members[] = {
    FIELD(Cell, "dirty", dirty), FIELD(Cell, "own_ttl", own_ttl), FIELD(Cell, "stamp", stamp), FIELD(Cell, "stored", stored),
    FIELD(Cell, "value", value), END_OF_FIELDS};

static PyType_Slot Cell_slots[] = {
    {Py_tp_members, Cell_members}, {Py_tp_methods, Cell_methods}, {Py_tp_init, Cell_init}, LIFE_SLOTS(Cell), {0, NULL}};

static PyType_Spec Cell_spec = {
    "headrace.native._objects.Cell", sizeof(Cell), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, Cell_slots};

/* ------------------------------------------------------------------------------------------ RecordContext */

static void
start_record(RecordContext *context, PyObject *key_json, PyObject *record)
{
    SET(context->key_json, Py_NewRef(key_json));
    SET(context->record, Py_NewRef(record));
    SET(context->references, Py_NewRef(zero));
    SET(context->owns_key, Py_NewRef(Py_False));
}

static int
RecordContext_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *words[] = {"key_json", "record", NULL};
    PyObject *key_json, *record;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:RecordContext", words, &key_json, &record)) {
        return -1;
    }
    start_record((RecordContext *)self, key_json, record);
    return 0;
}

LIFE_OF(RecordContext, sizeof(RecordContext), NULL)

static PyMemberDef RecordContext_members[] = {
    FIELD(RecordContext, "awaited", awaited), OPTIONAL(RecordContext, "call", call), OPTIONAL(RecordContext, "callbacks", callbacks),
    OPTIONAL(RecordContext, "due_in", due_in), OPTIONAL(RecordContext, "epoch", epoch), FIELD(RecordContext, "key_json", key_json),
    OPTIONAL(RecordContext, "overdue", overdue), FIELD(RecordContext, "owns_key", owns_key),
    FIELD(RecordContext, "record", record), FIELD(RecordContext, "references", references), END_OF_FIELDS};

static PyType_Slot RecordContext_slots[] = {
    {Py_tp_members, RecordContext_members}, {Py_tp_init, RecordContext_init},
    LIFE_SLOTS(RecordContext), {0, NULL}};

static PyType_Spec RecordContext_spec = {
    "headrace.native._objects.RecordContext", sizeof(RecordContext), 0, BASE, RecordContext_slots};

/* ------------------------------------------------------------------------------------------ Outputs */

static int
Outputs_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *words[] = {"emitted", "insert", NULL};
    PyTypeObject *emitted;
    PyObject *insert;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:Outputs", words, &PyType_Type, &emitted, &insert)) {
        return -1;
    }
    if (!PyType_IsSubtype(emitted, &PyTuple_Type) || emitted->tp_basicsize != PyTuple_Type.tp_basicsize) {
        PyErr_Format(PyExc_TypeError, "%R must be a tuple without more fields", emitted);
        return -1;
    }
    PyObject *empty = PyObject_CallMethod((PyObject *)&PyTuple_Type, "__new__", "O()", emitted); /* no struct sequence */
    if (empty == NULL) {
        return -1;
    }
    Py_DECREF(empty);
    Outputs *outputs = (Outputs *)self;
    SET(outputs->emitted, Py_NewRef((PyObject *)emitted));
    SET(outputs->insert, Py_NewRef(insert));
    return 0;
}

/* Append a record to the main output; return -1 with an exception. Takes the reference of `order`. */
static int
append(Outputs *outputs, PyObject *order, PyObject *timestamp, PyObject *kind, PyObject *record)
{
    PyTypeObject *type = (PyTypeObject *)outputs->emitted;
    PyObject *emitted = type->tp_alloc(type, 4);
    if (emitted == NULL) {
        Py_DECREF(order);
        return -1;
    }
#if PY_VERSION_HEX >= 0x030E0000
    ((PyTupleObject *)emitted)->ob_hash = -1; /* not computed yet */
#endif
    PyTuple_SET_ITEM(emitted, 0, order);
    PyTuple_SET_ITEM(emitted, 1, Py_NewRef(timestamp));
    PyTuple_SET_ITEM(emitted, 2, Py_NewRef(kind));
    PyTuple_SET_ITEM(emitted, 3, Py_NewRef(record));
    PyObject *main = Py_XNewRef(outputs->main);
    int failed = main == NULL ? -1 : PyList_Append(main, emitted);
    if (main == NULL) {
        PyErr_SetString(PyExc_AttributeError, "main");
    }
    Py_XDECREF(main);
    Py_DECREF(emitted);
    return failed;
}

LIFE_OF(Outputs, sizeof(Outputs), NULL)

static PyMemberDef Outputs_members[] = {
    READ_ONLY(Outputs, "_emitted", emitted), READ_ONLY(Outputs, "_insert", insert), FIELD(Outputs, "main", main),
    FIELD(Outputs, "type", type), END_OF_FIELDS};

static PyType_Slot Outputs_slots[] = {
    {Py_tp_members, Outputs_members}, {Py_tp_init, Outputs_init}, LIFE_SLOTS(Outputs),
    {0, NULL}};

static PyType_Spec Outputs_spec = {"headrace.native._objects.Outputs", sizeof(Outputs), 0, BASE, Outputs_slots};

/* ------------------------------------------------------------------------------------------ ProcessContext */

static int
ProcessContext_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *words[] = {"outputs", "timers", "key_json", "function", "record", "timer", NULL};
    PyObject *outputs, *timers, *key_json, *function, *record, *timer = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOOO|O:ProcessContext", words, Outputs_Type, &outputs, &timers, &key_json,
                                     &function, &record, &timer)) {
        return -1;
    }
    ProcessContext *context = (ProcessContext *)self;
    start_record(&context->base, key_json, record);
    SET(context->outputs, Py_NewRef(outputs));
    SET(context->timers, Py_NewRef(timers));
    SET(context->function, Py_NewRef(function));
    SET(context->timer, Py_NewRef(timer));
    SET(context->row_kind, Py_XNewRef(((Outputs *)outputs)->insert));
    SET(context->index, Py_NewRef(zero));
    return 0;
}

/* Return the place of the next output, and count it: the context's place, and the index as four bytes (`records.order`). */
static PyObject *
next_place(ProcessContext *context)
{
    PyObject *cause = context->order;
    if (cause == NULL || !PyBytes_CheckExact(cause) || context->index == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a context that emits needs a place, and the number of its outputs");
        return NULL;
    }
    Py_ssize_t size = PyBytes_GET_SIZE(cause);
    unsigned long long index = PyLong_AsUnsignedLongLong(context->index);
    if (index > UINT32_MAX) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_OverflowError, "a record cannot have more outputs");
    }
    PyObject *next = PyLong_FromUnsignedLongLong(index + 1), *place = PyBytes_FromStringAndSize(NULL, size + 4);
    if (next == NULL || place == NULL) {
        Py_XDECREF(next);
        Py_XDECREF(place);
        return NULL;
    }
    unsigned char *bytes = (unsigned char *)PyBytes_AS_STRING(place);
    memcpy(bytes, PyBytes_AS_STRING(cause), size);
    for (int byte = 0; byte < 4; byte++) {
        bytes[size + byte] = (unsigned char)(index >> (24 - 8 * byte));
    }
    SET(context->index, next);
    return place;
}

/* Emit a record at a time. */
static PyObject *
emit(ProcessContext *context, Outputs *outputs, PyObject *record, PyObject *kind, PyObject *timestamp)
{
    PyObject *place = next_place(context);
    int failed = place == NULL ? -1 : append(outputs, place, timestamp, kind, record);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* `collect` in any case: of a record that the outputs have to take, and with a time of its own. */
static PyObject *
collect_any(ProcessContext *context, Outputs *outputs, PyObject *record, PyObject *kind, PyObject *timestamp)
{
    PyObject *taken = (PyObject *)Py_TYPE(record) == outputs->type
        ? Py_NewRef(record)
        : PyObject_CallMethodObjArgs((PyObject *)outputs, names.taken, record, kind, NULL);
    PyObject *time = taken == NULL ? NULL
        : timestamp == Py_None ? Py_XNewRef(context->timestamp)
                               : PyObject_CallMethodObjArgs((PyObject *)outputs, names.time_of, timestamp, NULL);
    if (taken != NULL && time == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_AttributeError, "timestamp");
    }
    PyObject *result = time == NULL ? NULL : emit(context, outputs, taken, kind, time);
    Py_XDECREF(taken);
    Py_XDECREF(time);
    return result;
}

/* Read the arguments `(record, /, kind=None, timestamp=None)`, borrowed; return -1 with an exception. */
static int
read_collected(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **kind, PyObject **timestamp)
{
    Py_ssize_t named = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    if (nargs < 1 || nargs > 3) {
        PyErr_Format(PyExc_TypeError, "collect() takes 1 to 3 positional arguments but %zd were given", nargs);
        return -1;
    }
    *kind = nargs > 1 ? args[1] : NULL;
    *timestamp = nargs > 2 ? args[2] : NULL;
    for (Py_ssize_t place = 0; place < named; place++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, place);
        PyObject **argument = PyUnicode_CompareWithASCIIString(name, "kind") == 0 ? kind
            : PyUnicode_CompareWithASCIIString(name, "timestamp") == 0           ? timestamp
                                                                                 : NULL;
        if (argument == NULL || *argument != NULL) {
            PyErr_Format(PyExc_TypeError, argument == NULL ? "collect() got an unexpected keyword argument '%U'"
                                                           : "collect() got multiple values for argument '%U'", name);
            return -1;
        }
        *argument = args[nargs + place];
    }
    return 0;
}

static PyObject *
ProcessContext_collect(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    ProcessContext *context = (ProcessContext *)self;
    PyObject *kind, *timestamp;
    if (read_collected(args, nargs, kwnames, &kind, &timestamp) < 0) {
        return NULL;
    }
    if (!IS_A(context->outputs, Outputs) || ((Outputs *)context->outputs)->emitted == NULL) {
        PyErr_SetString(PyExc_TypeError, "a context needs Outputs, which have been initialized");
        return NULL;
    }
    Outputs *outputs = (Outputs *)Py_NewRef(context->outputs);
    PyObject *own_kind = Py_XNewRef(kind == NULL || kind == Py_None ? outputs->insert : kind);
    PyObject *result = own_kind == NULL ? NULL
        : collect_any(context, outputs, args[0], own_kind, timestamp == NULL ? Py_None : timestamp);
    Py_XDECREF(own_kind);
    Py_DECREF(outputs);
    return result;
}

LIFE_OF(ProcessContext, sizeof(ProcessContext), &free_contexts)

ADOPTS(ProcessContext)

static PyMethodDef ProcessContext_methods[] = {
    {"collect", FUNCTION(ProcessContext_collect), WITH_NAMES,
     "collect($self, record, /, kind=None, timestamp=None)\n--\n\nEmit a record downstream, as it is now."},
    ADOPTED(ProcessContext), {NULL, NULL, 0, NULL}};

static PyMemberDef ProcessContext_members[] = {
    FIELD(ProcessContext, "_outputs", outputs), FIELD(ProcessContext, "_timers", timers),
    FIELD(ProcessContext, "expired_until", expired_until), FIELD(ProcessContext, "function", function),
    FIELD(ProcessContext, "index", index), FIELD(ProcessContext, "order", order), FIELD(ProcessContext, "row_kind", row_kind),
    OPTIONAL(ProcessContext, "timer", timer), FIELD(ProcessContext, "timestamp", timestamp),
    FIELD(ProcessContext, "watermark", watermark), END_OF_FIELDS};

static PyType_Slot ProcessContext_slots[] = {
    {Py_tp_members, ProcessContext_members}, {Py_tp_methods, ProcessContext_methods},
    {Py_tp_init, ProcessContext_init}, LIFE_SLOTS(ProcessContext), {0, NULL}};

static PyType_Spec ProcessContext_spec = {
    "headrace.native._objects.ProcessContext", sizeof(ProcessContext), 0, BASE, ProcessContext_slots};

/* ------------------------------------------------------------------------------------------ ValueCells */

/* A cached entry that the code that runs may use at once. */
typedef struct {
    PyObject *context;
    Cell *cell;
    PyObject *timestamp;
} Entry;

static void
leave(Entry *entry)
{
    Py_DECREF(entry->context);
    Py_XDECREF(entry->cell);
    Py_DECREF(entry->timestamp);
}

/* Return whether a call of a context's code waits: 1, 0, or -1 with an exception. */
static int
waits(ValueCells *cells, PyObject *context)
{
    if (cells->loading == NULL || !PyDict_CheckExact(cells->loading)) {
        return 1;
    }
    if (PyDict_GET_SIZE(cells->loading) == 0) {
        return 0;
    }
    PyObject *id = PyLong_FromVoidPtr(context);
    PyObject *loading = Py_NewRef(cells->loading);
    int is_waiting = id == NULL ? -1 : PyDict_Contains(loading, id);
    Py_XDECREF(id);
    Py_DECREF(loading);
    return is_waiting;
}

/* Cache what was read ahead of an entry: return its cell, or NULL. Without an exception, the entry was not read ahead, or its value does
 * not fit the declared type: the store reads it again, and raises the error that names it. */
static PyObject *
cache_ahead(ValueCells *cells, PyObject *name)
{
    if (cells->ahead == NULL || !PyDict_CheckExact(cells->ahead) || PyDict_GET_SIZE(cells->ahead) == 0 || cells->decode == NULL) {
        return NULL;
    }
    PyObject *by_name = Py_NewRef(cells->cells), *ahead = Py_NewRef(cells->ahead), *decode = Py_NewRef(cells->decode); /* may run code */
    PyObject *stored = Py_XNewRef(PyDict_GetItemWithError(ahead, name));
    PyObject *cell = stored == NULL ? NULL : cell_of(stored, decode);
    if (cell != NULL && (PyDict_SetItem(by_name, name, cell) < 0 || PyDict_DelItem(ahead, name) < 0)) {
        Py_CLEAR(cell);
    }
    if (cell == NULL && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
    }
    Py_XDECREF(stored);
    Py_DECREF(decode);
    Py_DECREF(ahead);
    Py_DECREF(by_name);
    return cell;
}

/* Find the entry of the running code's key, in the namespace whose suffix it is: return 1, 0 if it takes more than the
 * cache, or -1 with an exception. */
static int
enter(ValueCells *cells, PyObject *suffix, Entry *entry)
{
    PyObject *context = IS_A(cells->task, RunningTask) ? ((RunningTask *)cells->task)->context : NULL;
    if (!IS_A(context, ProcessContext) || ((RecordContext *)context)->owns_key != Py_True) {
        return 0;
    }
    int is_waiting = waits(cells, context);
    PyObject *name = ((RecordContext *)context)->key_json, *timestamp = ((ProcessContext *)context)->timestamp;
    if (is_waiting || name == NULL || !PyBytes_CheckExact(name) || timestamp == NULL || cells->cells == NULL
        || !PyDict_CheckExact(cells->cells)) {
        return is_waiting < 0 ? -1 : 0;
    }
    *entry = (Entry){Py_NewRef(context), NULL, Py_NewRef(timestamp)}; /* a key of the dict may run code */
    Py_INCREF(name);
    if (suffix != NULL && PyBytes_GET_SIZE(suffix)) {
        PyBytes_Concat(&name, suffix);
    }
    PyObject *cell = name == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(cells->cells, name));
    if (cell == NULL && !PyErr_Occurred()) {
        cell = cache_ahead(cells, name);
    }
    Py_XDECREF(name);
    if (!IS_EXACTLY(cell, Cell) || ((Cell *)cell)->value == NULL) {
        Py_XDECREF(cell);
        leave(entry);
        return PyErr_Occurred() ? -1 : 0;
    }
    entry->cell = (Cell *)cell;
    return 1;
}

/* Return what a call answers: a future, or for a plain `def` the value. */
static PyObject *
answer(ValueCells *cells, PyObject *value)
{
    if (cells->blocking == Py_True) {
        return Py_NewRef(value);
    }
    PyObject *done = cells->done;
    if (!IS_A(done, StateFuture) || cells->task == NULL) {
        PyErr_SetString(PyExc_TypeError, "the cells need their task, and the future of None");
        return NULL;
    }
    if (value == Py_None) {
        return Py_NewRef(done);
    }
    PyObject *task = Py_NewRef(cells->task), *type = Py_NewRef((PyObject *)Py_TYPE(done));
    StateFuture *future = (StateFuture *)allocate((PyTypeObject *)type, &free_futures); /* may run the collector */
    Py_DECREF(type);
    if (future == NULL) {
        Py_DECREF(task);
        return NULL;
    }
    future->done = Py_NewRef(Py_True);
    future->answer = Py_NewRef(value);
    future->task = task;
    return (PyObject *)future;
}

/* Return the value of a cell; None if it is expired and invisible. */
static PyObject *
value_of(ValueCells *cells, Entry *entry)
{
    if (cells->ttl == Py_None) {
        return Py_NewRef(entry->cell->value);
    }
    return PyObject_CallMethodObjArgs((PyObject *)cells, names.alive, entry->context, entry->cell, NULL);
}

static PyObject *
ValueCells_value(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ValueCells *cells = (ValueCells *)self;
    Entry entry;
    int is_cached = enter(cells, NULL, &entry);
    if (is_cached <= 0) {
        return is_cached < 0 ? NULL : PyObject_CallMethodNoArgs(self, names.read_value);
    }
    PyObject *value = value_of(cells, &entry);
    cells->hits += cells->blocking != Py_True;
    PyObject *result = value == NULL ? NULL : answer(cells, value);
    Py_XDECREF(value);
    leave(&entry);
    return result;
}

/* Read the arguments `(value, /, ttl=None)` of a method, borrowed; return -1 with an exception. */
static int
read_written(const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **ttl)
{
    Py_ssize_t named = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    if (nargs < 1) {
        PyErr_Format(PyExc_TypeError, "%s() missing 1 required positional argument: 'value'", method);
        return -1;
    }
    if (nargs + named > 2) {
        PyErr_Format(PyExc_TypeError, "%s() takes from 1 to 2 positional arguments but %zd were given", method, nargs + named);
        return -1;
    }
    if (named && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "ttl")) {
        PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", method, PyTuple_GET_ITEM(kwnames, 0));
        return -1;
    }
    *ttl = nargs + named == 2 ? args[1] : Py_None;
    return 0;
}

/* Write a value to a cached entry. */
static PyObject *
write_entry(ValueCells *cells, Entry *entry, PyObject *value)
{
    if (cells->ttl == Py_None) {
        write_cell(entry->cell, value, entry->timestamp);
        return answer(cells, Py_None);
    }
    PyObject *set = PyObject_CallMethodObjArgs((PyObject *)cells, names.set, entry->context, entry->cell, value, NULL);
    Py_XDECREF(set);
    return set == NULL ? NULL : answer(cells, Py_None);
}

static PyObject *
ValueCells_update(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *ttl;
    if (read_written("update", args, nargs, kwnames, &ttl) < 0) {
        return NULL;
    }
    Entry entry;
    int is_cached = args[0] == Py_None || ttl != Py_None ? 0 : enter((ValueCells *)self, NULL, &entry);
    if (is_cached <= 0) {
        return is_cached < 0 ? NULL : PyObject_CallMethodObjArgs(self, names.write_value, args[0], ttl, NULL);
    }
    PyObject *result = write_entry((ValueCells *)self, &entry, args[0]);
    leave(&entry);
    return result;
}

LIFE_OF(ValueCells, offsetof(ValueCells, hits), NULL)

ADOPTS(ValueCells)

static PyMethodDef ValueCells_methods[] = {
    {"value", ValueCells_value, METH_NOARGS, "value($self, /)\n--\n\nRead the key's value."},
    {"update", FUNCTION(ValueCells_update), WITH_NAMES,
     "update($self, value, /, ttl=None)\n--\n\nSet the key's value; None is the same as `clear`."},
    ADOPTED(ValueCells), {NULL, NULL, 0, NULL}};

static PyMemberDef ValueCells_members[] = {
    FIELD(ValueCells, "_add", add), FIELD(ValueCells, "_ahead", ahead), FIELD(ValueCells, "_cells", cells),
    FIELD(ValueCells, "_decode", decode), FIELD(ValueCells, "_done", done),
    FIELD(ValueCells, "_get_result", get_result), FIELD(ValueCells, "_loading", loading), FIELD(ValueCells, "_task", task),
    FIELD(ValueCells, "_ttl", ttl), FIELD(ValueCells, "blocking", blocking), COUNT(ValueCells, "hits", hits), END_OF_FIELDS};

static PyType_Slot ValueCells_slots[] = {
    {Py_tp_members, ValueCells_members}, {Py_tp_methods, ValueCells_methods},
    LIFE_SLOTS(ValueCells), {0, NULL}};

static PyType_Spec ValueCells_spec = {
    "headrace.native._objects.ValueCells", sizeof(ValueCells), 0, BASE, ValueCells_slots};

/* ------------------------------------------------------------------------------------------ CachedHandle */

/* An accumulator that the code that runs may use at once, and its store. */
typedef struct {
    ValueCells *store;
    Entry entry;
    PyObject *accumulator;
} Accumulator;

static void
leave_accumulator(Accumulator *at)
{
    leave(&at->entry);
    Py_DECREF(at->store);
    Py_DECREF(at->accumulator);
}

/* Find the accumulator of the running code's key, without TTL: return 1, 0 if it takes more than the cache, or -1 with an
 * exception. */
static int
enter_accumulator(CachedHandle *handle, Accumulator *at)
{
    ValueCells *store = (ValueCells *)handle->store;
    if (!IS_A(handle->store, ValueCells) || store->ttl != Py_None || store->add == NULL || store->get_result == NULL
        || handle->suffix == NULL || !PyBytes_CheckExact(handle->suffix)) {
        return 0;
    }
    Py_INCREF(store);
    int is_cached = enter(store, handle->suffix, &at->entry);
    if (is_cached > 0 && (at->entry.cell->value == Py_None || store->add == NULL || store->get_result == NULL)) {
        leave(&at->entry); /* the store makes the first accumulator */
        is_cached = 0;
    }
    if (is_cached <= 0) {
        Py_DECREF(store);
        return is_cached;
    }
    at->store = store;
    at->accumulator = Py_NewRef(at->entry.cell->value);
    return 1;
}

static PyObject *
CachedHandle_add(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *ttl;
    if (read_written("add", args, nargs, kwnames, &ttl) < 0) {
        return NULL;
    }
    Accumulator at;
    int is_cached = args[0] == Py_None || ttl != Py_None ? 0 : enter_accumulator((CachedHandle *)self, &at);
    if (is_cached <= 0) {
        return is_cached < 0 ? NULL : PyObject_CallMethodObjArgs(self, names.add_value, args[0], ttl, NULL);
    }
    at.store->hits++;
    PyObject *add = Py_NewRef(at.store->add);
    PyObject *sum = PyObject_CallFunctionObjArgs(add, args[0], at.accumulator, NULL), *result = NULL;
    Py_DECREF(add);
    if (sum != NULL) {
        /* None removes the entry, which keeps its stamp. */
        write_cell(at.entry.cell, sum, sum == Py_None ? at.entry.cell->stamp : at.entry.timestamp);
        Py_DECREF(sum);
        result = answer(at.store, Py_None);
    }
    leave_accumulator(&at);
    return result;
}

static PyObject *
CachedHandle_get(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Accumulator at;
    int is_cached = enter_accumulator((CachedHandle *)self, &at);
    if (is_cached <= 0) {
        return is_cached < 0 ? NULL : PyObject_CallMethodNoArgs(self, names.read_result);
    }
    at.store->hits++;
    PyObject *get_result = Py_NewRef(at.store->get_result);
    PyObject *value = PyObject_CallOneArg(get_result, at.accumulator);
    Py_DECREF(get_result);
    PyObject *result = value == NULL ? NULL : answer(at.store, value);
    Py_XDECREF(value);
    leave_accumulator(&at);
    return result;
}

LIFE_OF(CachedHandle, sizeof(CachedHandle), NULL)

ADOPTS(CachedHandle)

static PyMethodDef CachedHandle_methods[] = {
    {"add", FUNCTION(CachedHandle_add), WITH_NAMES,
     "add($self, value, /, ttl=None)\n--\n\nAdd `value` to the accumulator. Raises `ValueError` for None."},
    {"get", CachedHandle_get, METH_NOARGS,
     "get($self, /)\n--\n\nRead the result; `None` if nothing was added, or it has expired."},
    ADOPTED(CachedHandle), {NULL, NULL, 0, NULL}};

static PyMemberDef CachedHandle_members[] = {
    FIELD(CachedHandle, "_store", store), FIELD(CachedHandle, "_suffix", suffix), END_OF_FIELDS};

static PyType_Slot CachedHandle_slots[] = {
    {Py_tp_members, CachedHandle_members}, {Py_tp_methods, CachedHandle_methods},
    LIFE_SLOTS(CachedHandle), {0, NULL}};

static PyType_Spec CachedHandle_spec = {
    "headrace.native._objects.CachedHandle", sizeof(CachedHandle), 0, BASE, CachedHandle_slots};

/* ------------------------------------------------------------------------------------------ RecordLoop */

/* The loop holds its fields as long as it lives: they are set once. */
static int
RecordLoop_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *words[] = {"task", "contexts", "outputs", "timers", "inputs", "kinds", "due", "before", "not_plain", NULL};
    RecordLoop given = {.late = 0}, *loop = (RecordLoop *)self;
    if (loop->task != NULL) {
        PyErr_SetString(PyExc_TypeError, "a loop begins once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!OO!O!OOO:RecordLoop", words, RunningTask_Type, &given.task,
                                     &PyType_Type, &given.contexts, Outputs_Type, &given.outputs, &given.timers, &PyTuple_Type,
                                     &given.inputs, &PyTuple_Type, &given.kinds, &given.due, &given.before, &given.not_plain)) {
        return -1;
    }
    if (!PyType_IsSubtype((PyTypeObject *)given.contexts, ProcessContext_Type)) {
        PyErr_Format(PyExc_TypeError, "%R is no ProcessContext", given.contexts);
        return -1;
    }
    PyObject **taken = FIRST_FIELD(&given.ob_base), **field = FIRST_FIELD(self);
    while (field < (PyObject **)&loop->late) {
        *field++ = Py_NewRef(*taken++);
    }
    return 0;
}

/* Return an item of a tuple, borrowed; NULL with an exception. */
static PyObject *
item_at(PyObject *tuple, PyObject *index)
{
    Py_ssize_t place = PyNumber_AsSsize_t(index, PyExc_IndexError);
    return place == -1 && PyErr_Occurred() ? NULL : PyTuple_GetItem(tuple, place);
}

/* Make the context of an element: the one that runs now. Its function stays in the inputs. */
static ProcessContext *
begin(RecordLoop *loop, PyObject *element, PyObject *watermark, PyObject **function)
{
    if (!PyTuple_Check(element) || PyTuple_GET_SIZE(element) != 6) {
        PyErr_SetString(PyExc_TypeError, "an element is a tuple of six");
        return NULL;
    }
    PyObject *row_kind = item_at(loop->kinds, PyTuple_GET_ITEM(element, 2));
    *function = row_kind == NULL ? NULL : item_at(loop->inputs, PyTuple_GET_ITEM(element, 5));
    PyObject *made = *function == NULL ? NULL : allocate((PyTypeObject *)loop->contexts, &free_contexts);
    if (made == NULL) {
        return NULL;
    }
    ProcessContext *context = (ProcessContext *)made;
    context->base.key_json = Py_NewRef(PyTuple_GET_ITEM(element, 3));
    context->base.record = Py_NewRef(PyTuple_GET_ITEM(element, 4));
    context->base.references = Py_NewRef(zero);
    context->base.owns_key = Py_NewRef(Py_True);
    context->outputs = Py_NewRef(loop->outputs);
    context->timers = Py_NewRef(loop->timers);
    context->function = Py_NewRef(*function);
    context->row_kind = Py_NewRef(row_kind);
    context->index = Py_NewRef(zero);
    context->order = Py_NewRef(PyTuple_GET_ITEM(element, 0));
    context->timestamp = Py_NewRef(PyTuple_GET_ITEM(element, 1));
    context->watermark = Py_NewRef(watermark);
    context->expired_until = Py_NewRef(watermark);
    SET(((RunningTask *)loop->task)->context, Py_NewRef(made));
    return context;
}

/* Run what is due before a context, and the context behind it: return 1 if there is any, 0, or -1 with an exception. */
static int
run_behind_due(RecordLoop *loop, ProcessContext *context)
{
    int is_due = PyObject_IsTrue(loop->due);
    if (is_due <= 0) {
        return is_due;
    }
    PyObject *earlier = PyObject_CallOneArg(loop->before, (PyObject *)context), *done = NULL;
    if (earlier != NULL && earlier != Py_None) {
        done = PyObject_CallMethodObjArgs(loop->task, names.run_behind, earlier, context, NULL);
    }
    int result = earlier == Py_None ? 0 : done == NULL ? -1 : 1;
    Py_XDECREF(earlier);
    Py_XDECREF(done);
    return result;
}

/* Raise the error of a plain function that returned something. */
static void
refuse_returned(RecordLoop *loop, PyObject *returned)
{
    PyObject *error = PyObject_CallOneArg(loop->not_plain, returned);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
}

/* Return the coroutine of a record whose function has returned it, or something else that can be awaited. Takes the reference. */
static PyObject *
coroutine_of(RecordLoop *loop, PyObject *returned)
{
    if (!PyCoro_CheckExact(returned)) {
        Py_SETREF(returned, PyObject_CallMethodOneArg(loop->task, names.awaiting, returned));
    }
    return returned;
}

/* Run the code of a record: 0 when it has ended, 1 with `*waiting` when it waits, a pair of its coroutine and of what that
 * awaits, -1 with an exception. */
static int
run_code(RecordLoop *loop, PyObject *function, PyObject *record, ProcessContext *context, PyObject **waiting)
{
    PyObject *args[] = {NULL, record, (PyObject *)context}; /* the first one is a place for `self`, which saves a copy */
    PyObject *code = PyObject_Vectorcall(function, args + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    if (code == NULL || code == Py_None) {
        Py_XDECREF(code);
        return code == NULL ? -1 : 0;
    }
    if (loop->not_plain != Py_None) {
        refuse_returned(loop, code);
        Py_DECREF(code);
        return -1;
    }
    code = coroutine_of(loop, code);
    if (code == NULL) {
        return -1;
    }
    PyObject *result = NULL;
    PySendResult sent = PyIter_Send(code, Py_None, &result);
    if (sent == PYGEN_NEXT) {
        *waiting = PyTuple_Pack(2, code, result);
    }
    Py_DECREF(code);
    Py_XDECREF(result);
    return sent == PYGEN_RETURN ? 0 : sent == PYGEN_NEXT && *waiting != NULL ? 1 : -1;
}

/* Finish a record whose code has ended: return 0 if nothing is left of it; 1 if the task has to wait for its requests, its
 * callbacks, or an overdue timer; -1 with an exception. */
static int
finish(RecordLoop *loop, RecordContext *context)
{
    int is_overdue = IS_NONE(context->overdue) ? 0 : PyObject_IsTrue(context->overdue);
    if (is_overdue == 0 && IS_NONE(context->epoch) && IS_NONE(context->callbacks)) {
        SET(context->references, Py_NewRef(zero));
        return 0;
    }
    PyObject *done = is_overdue < 0 ? NULL : PyObject_CallMethodOneArg(loop->task, names.end_of_code, (PyObject *)context);
    Py_XDECREF(done);
    return done == NULL ? -1 : 1;
}

/* Process an element: 0 when the next one may follow, 1 when the loop has to end, -1 with an exception. */
static int
take(RecordLoop *loop, PyObject *element, PyObject *watermark, PyObject **waiting)
{
    PyObject *function;
    ProcessContext *context = begin(loop, element, watermark, &function);
    int ends = context == NULL ? -1 : run_behind_due(loop, context);
    if (ends == 0) {
        SET(context->base.references, Py_NewRef(one));
        ends = run_code(loop, function, PyTuple_GET_ITEM(element, 4), context, waiting);
        ends = ends == 0 ? finish(loop, &context->base) : ends;
    }
    Py_XDECREF(context);
    return ends;
}

/* Count an element that is late; return -1 with an exception. */
static int
count_late(RecordLoop *loop, PyObject *element, long long watermark)
{
    PyObject *timestamp = PyTuple_Check(element) && PyTuple_GET_SIZE(element) > 1 ? PyTuple_GET_ITEM(element, 1) : Py_None;
    long long time = PyLong_AsLongLong(timestamp);
    loop->late += time <= watermark && !(time == -1 && PyErr_Occurred());
    return time == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *
RecordLoop_run(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    RecordLoop *loop = (RecordLoop *)self;
    if (nargs != 2 || !PyIter_Check(args[0]) || loop->task == NULL) {
        PyErr_SetString(PyExc_TypeError, "run() takes an iterator of elements and a watermark");
        return NULL;
    }
    long long watermark = PyLong_AsLongLong(args[1]);
    if (watermark == -1 && PyErr_Occurred()) {
        return NULL;
    }
    PyObject *waiting = NULL;
    int ends = 0;
    while (ends == 0) {
        PyObject *element = PyIter_Next(args[0]);
        if (element == NULL) {
            ends = PyErr_Occurred() ? -1 : 1;
            break;
        }
        ends = count_late(loop, element, watermark) < 0 ? -1 : take(loop, element, args[1], &waiting);
        Py_DECREF(element);
    }
    return ends < 0 ? NULL : waiting == NULL ? Py_NewRef(Py_None) : waiting;
}

LIFE_OF(RecordLoop, offsetof(RecordLoop, late), NULL)

static PyMethodDef RecordLoop_methods[] = {
    {"run", FUNCTION(RecordLoop_run), METH_FASTCALL,
     "run($self, elements, watermark, /)\n--\n\nRun records until one has to wait: return its coroutine, and what it awaits, or None."},
    {NULL, NULL, 0, NULL}};

static PyMemberDef RecordLoop_members[] = {COUNT(RecordLoop, "late", late), END_OF_FIELDS};

static PyType_Slot RecordLoop_slots[] = {
    {Py_tp_members, RecordLoop_members}, {Py_tp_methods, RecordLoop_methods}, {Py_tp_init, RecordLoop_init},
    LIFE_SLOTS(RecordLoop), {0, NULL}};

static PyType_Spec RecordLoop_spec = {
    "headrace.native._objects.RecordLoop", sizeof(RecordLoop), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, RecordLoop_slots};

/* ------------------------------------------------------------------------------------------ module */

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace.native._objects",
    .m_doc = "The hot objects of a record, in C.",
    .m_size = -1, /* types and free lists belong to the process: one interpreter has them */
};

/* Make a type and add it to the module; return -1 with an exception. */
static int
add_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base, PyTypeObject **type)
{
    PyObject *bases = base == NULL ? NULL : PyTuple_Pack(1, base);
    *type = base != NULL && bases == NULL ? NULL : (PyTypeObject *)PyType_FromSpecWithBases(spec, bases);
    Py_XDECREF(bases);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

static int
add_types(PyObject *module)
{
    return add_type(module, &RunningTask_spec, NULL, &RunningTask_Type) < 0
            || add_type(module, &Waiter_spec, NULL, &Waiter_Type) < 0
            || add_type(module, &StateFuture_spec, NULL, &StateFuture_Type) < 0
            || add_type(module, &Cell_spec, NULL, &Cell_Type) < 0
            || add_type(module, &RecordContext_spec, NULL, &RecordContext_Type) < 0
            || add_type(module, &Outputs_spec, NULL, &Outputs_Type) < 0
            || add_type(module, &ProcessContext_spec, RecordContext_Type, &ProcessContext_Type) < 0
            || add_type(module, &ValueCells_spec, NULL, &ValueCells_Type) < 0
            || add_type(module, &CachedHandle_spec, NULL, &CachedHandle_Type) < 0
            || add_type(module, &RecordLoop_spec, NULL, &RecordLoop_Type) < 0
        ? -1
        : 0;
}

static int
make_constants(void)
{
    zero = PyLong_FromLong(0);
    one = PyLong_FromLong(1);
#define AS_STRING(name) && (names.name = PyUnicode_InternFromString(#name)) != NULL
    return zero != NULL && one != NULL NAMES(AS_STRING) ? 0 : -1;
#undef AS_STRING
}

PyMODINIT_FUNC
PyInit__objects(void)
{
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL || make_constants() < 0 || add_types(module) < 0
        || PyModule_AddObjectRef(module, "LOOP_CODE", Py_None) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
