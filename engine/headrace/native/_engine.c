/* The engine's hottest code in C: the loop over records that wait for nothing, cached reads and writes of values and
 * accumulators, what code emits, and `await` of a future that has its answer.
 *
 * The classes are those of the Python code. Their fields are `__slots__`, and each slot lies at a fixed place of its objects:
 * `attach` looks the places up, and replaces methods by those below. So there is one definition of each class, and a
 * method in C does the common case only: before it has changed anything, it leaves every other case to the method in Python
 * that it replaced.
 *
 * References: SLOT() is borrowed. A function returns a new reference, or NULL with an exception, unless its comment says
 * otherwise. Whatever a slot held may run code when it is dropped, so nothing borrowed is used after `set_slot`.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#ifdef Py_GIL_DISABLED
#error "this Python has no global lock, which this module relies on"
#endif

/* ------------------------------------------------------------------------------------------ classes and their slots */

#define CLASSES(CLASS) \
    CLASS(AggregatingHandle) CLASS(AggregatingStore) CLASS(AsyncExecutionController) CLASS(BlockingValueStore) CLASS(Cell) \
    CLASS(Emitted) CLASS(Outputs) CLASS(ProcessContext) CLASS(RecordContext) CLASS(SingleHandle) CLASS(SingleStore) \
    CLASS(StateFuture) CLASS(StateStore) CLASS(ValueStore)

#define SLOTS(SLOT_OF) \
    SLOT_OF(AggregatingStore, _add) SLOT_OF(AggregatingStore, _get_result) \
    SLOT_OF(AsyncExecutionController, context) \
    SLOT_OF(Cell, dirty) SLOT_OF(Cell, own_ttl) SLOT_OF(Cell, stamp) SLOT_OF(Cell, value) \
    SLOT_OF(Outputs, main) SLOT_OF(Outputs, type) \
    SLOT_OF(ProcessContext, _outputs) SLOT_OF(ProcessContext, function) SLOT_OF(ProcessContext, index) \
    SLOT_OF(ProcessContext, order) SLOT_OF(ProcessContext, row_kind) SLOT_OF(ProcessContext, timestamp) \
    SLOT_OF(RecordContext, callbacks) SLOT_OF(RecordContext, epoch) SLOT_OF(RecordContext, key_json) \
    SLOT_OF(RecordContext, overdue) SLOT_OF(RecordContext, owns_key) SLOT_OF(RecordContext, record) \
    SLOT_OF(RecordContext, references) \
    SLOT_OF(SingleHandle, _store) SLOT_OF(SingleHandle, _suffix) \
    SLOT_OF(SingleStore, _answered) SLOT_OF(SingleStore, _cells) \
    SLOT_OF(StateFuture, _task) SLOT_OF(StateFuture, answer) SLOT_OF(StateFuture, done) \
    SLOT_OF(StateStore, _done) SLOT_OF(StateStore, _loading) SLOT_OF(StateStore, _task) SLOT_OF(StateStore, _ttl) \
    SLOT_OF(StateStore, blocking) SLOT_OF(StateStore, hits)

#define AS_INDEX(class) class##_class,
enum { CLASSES(AS_INDEX) N_CLASSES };
#undef AS_INDEX

#define AS_INDEX(class, slot) class##_##slot,
enum { SLOTS(AS_INDEX) N_SLOTS };
#undef AS_INDEX

#define AS_NAME(class) #class,
static const char *const class_names[] = {CLASSES(AS_NAME)};
#undef AS_NAME

#define AS_NAME(class, slot) {class##_class, #slot},
static const struct {
    int class;
    const char *name;
} slots[] = {SLOTS(AS_NAME)};
#undef AS_NAME

static PyTypeObject *types[N_CLASSES];  /* NULL until a class is attached: no object is of it then */
static Py_ssize_t places[N_SLOTS];
static int is_on = 1;                   /* false: all methods leave everything to Python */
static PyObject *zero, *one;

#define SLOT(object, slot) (*(PyObject **)((char *)(object) + places[slot]))
#define IS_EXACTLY(object, class) ((object) != NULL && Py_TYPE(object) == types[class##_class])
#define IS_A(object, class) \
    ((object) != NULL && types[class##_class] != NULL && PyObject_TypeCheck(object, types[class##_class]))

/* Set a slot to an object, whose reference it takes. */
static inline void
set_slot(PyObject *object, int slot, PyObject *value)
{
    PyObject *before = SLOT(object, slot);
    SLOT(object, slot) = value;
    Py_XDECREF(before);
}

/* ------------------------------------------------------------------------------------------ methods left to Python */

enum { VALUE, UPDATE, BLOCKING_VALUE, BLOCKING_UPDATE, ADD, GET, COLLECT, AWAIT, N_METHODS };

static PyObject *in_python[N_METHODS];

/* Call the method in Python that a method in C has replaced. */
static PyObject *
leave_to_python(int method, PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Py_ssize_t count = nargs + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    PyObject *few[8], **all = few;
    if (count >= 8 && (all = PyMem_Malloc((count + 1) * sizeof(PyObject *))) == NULL) {
        return PyErr_NoMemory();
    }
    all[0] = self;
    if (count) {
        memcpy(all + 1, args, count * sizeof(PyObject *));
    }
    PyObject *result = PyObject_Vectorcall(in_python[method], all, nargs + 1, kwnames);
    if (all != few) {
        PyMem_Free(all);
    }
    return result;
}

/* ------------------------------------------------------------------------------------------ await of a future */

/* What `await` goes through for a future: the same as the generator `StateFuture.__await__`. */
typedef struct {
    PyObject_HEAD
    PyObject *future; /* NULL when it has ended */
    int has_waited;
} Waiter;

static PyTypeObject Waiter_Type;
static Waiter *spare; /* serves the next `await` when nobody else refers to it */

/* Return whether callbacks wait in the record that runs: 1, 0, or -1 with an exception. */
static int
callbacks_wait(PyObject *future)
{
    PyObject *task = SLOT(future, StateFuture__task);
    if (IS_EXACTLY(task, AsyncExecutionController)) {
        PyObject *context = SLOT(task, AsyncExecutionController_context);
        if (IS_A(context, RecordContext) && SLOT(context, RecordContext_callbacks) == Py_None) {
            return 0;
        }
    }
    PyObject *held = PyObject_GetAttrString(future, "_task");
    PyObject *context = held == NULL ? NULL : PyObject_GetAttrString(held, "context");
    PyObject *callbacks = context == NULL ? NULL : PyObject_GetAttrString(context, "callbacks");
    int wait = callbacks == NULL ? -1 : PyObject_IsTrue(callbacks);
    Py_XDECREF(held);
    Py_XDECREF(context);
    Py_XDECREF(callbacks);
    return wait;
}

static PySendResult
waiter_send(PyObject *self, PyObject *Py_UNUSED(sent), PyObject **result)
{
    Waiter *waiter = (Waiter *)self;
    PyObject *future = waiter->future;
    waiter->future = NULL;
    *result = NULL;
    if (future == NULL) {
        *result = Py_NewRef(Py_None);
        return PYGEN_RETURN;
    }
    int waits = waiter->has_waited ? 0 : SLOT(future, StateFuture_done) == Py_True ? callbacks_wait(future) : 1;
    if (waits > 0) {
        waiter->has_waited = 1;
        waiter->future = Py_NewRef(future);
        *result = future;
        return PYGEN_NEXT;
    }
    if (waits == 0) {
        *result = Py_XNewRef(SLOT(future, StateFuture_answer));
        if (*result == NULL) {
            *result = PyObject_GetAttrString(future, "answer"); /* raises */
        }
    }
    Py_DECREF(future);
    return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

static PyObject *
waiter_next(PyObject *self)
{
    PyObject *result;
    if (waiter_send(self, Py_None, &result) == PYGEN_RETURN) {
        if (result != Py_None) {
            PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
            if (stop != NULL) {
                PyErr_SetObject(PyExc_StopIteration, stop);
                Py_DECREF(stop);
            }
        }
        Py_CLEAR(result);
    }
    return result;
}

static int
waiter_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Waiter *)self)->future);
    return 0;
}

static int
waiter_clear(PyObject *self)
{
    Py_CLEAR(((Waiter *)self)->future);
    return 0;
}

static void
waiter_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    waiter_clear(self);
    PyObject_GC_Del(self);
}

static PyAsyncMethods waiter_as_async = {.am_send = waiter_send};

static PyTypeObject Waiter_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "headrace.native._engine.Waiter",
    .tp_doc = "Iterator behind `await` of a StateFuture.",
    .tp_basicsize = sizeof(Waiter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_traverse = waiter_traverse,
    .tp_clear = waiter_clear,
    .tp_dealloc = waiter_dealloc,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = waiter_next,
    .tp_as_async = &waiter_as_async,
};

/* `StateFuture.__await__`. Only `await` comes here: the class still has the method in Python. */
static PyObject *
future_await(PyObject *self)
{
    if (!is_on) {
        return leave_to_python(AWAIT, self, NULL, 0, NULL);
    }
    if (spare != NULL && Py_REFCNT(spare) == 1 && spare->future == NULL) { /* it has a future if its code was closed */
        spare->future = Py_NewRef(self);
        spare->has_waited = 0;
        return Py_NewRef((PyObject *)spare);
    }
    Waiter *waiter = PyObject_GC_New(Waiter, &Waiter_Type);
    if (waiter == NULL) {
        return NULL;
    }
    waiter->future = Py_NewRef(self);
    waiter->has_waited = 0;
    PyObject_GC_Track(waiter);
    Py_INCREF(waiter);
    Py_XSETREF(spare, waiter); /* what the former one holds may run code, which may await: this one is taken already */
    return (PyObject *)waiter;
}

/* ------------------------------------------------------------------------------------------ entries of state */

/* Return the context of the code that runs, borrowed; NULL without an exception unless it may access its key's state at
 * once: the key is its own, and no call of state waits. */
static PyObject *
context_at_hand(PyObject *store)
{
    PyObject *task = SLOT(store, StateStore__task), *loading = SLOT(store, StateStore__loading);
    if (!is_on || !IS_EXACTLY(task, AsyncExecutionController) || loading == NULL || !PyDict_CheckExact(loading)) {
        return NULL;
    }
    PyObject *context = SLOT(task, AsyncExecutionController_context);
    if (PyDict_GET_SIZE(loading) || !IS_A(context, ProcessContext) || SLOT(context, RecordContext_owns_key) != Py_True) {
        return NULL;
    }
    return context;
}

/* Return the cell of an entry in a state without TTL; NULL if it is not cached, or with an exception. */
static PyObject *
cell_named(PyObject *store, PyObject *name)
{
    PyObject *cells = SLOT(store, SingleStore__cells);
    if (SLOT(store, StateStore__ttl) != Py_None || cells == NULL || !PyDict_CheckExact(cells) || name == NULL
        || !PyBytes_CheckExact(name)) {
        return NULL;
    }
    PyObject *cell = PyDict_GetItemWithError(cells, name);
    return IS_EXACTLY(cell, Cell) ? Py_NewRef(cell) : NULL;
}

/* Return the cell of a context's key outside of namespaces, as `cell_named` does. */
static PyObject *
cell_of(PyObject *store, PyObject *context)
{
    return cell_named(store, SLOT(context, RecordContext_key_json));
}

/* Return a future of a value. The store's own one serves again when nobody else refers to it. */
static PyObject *
answered(PyObject *store, PyObject *value)
{
    PyObject *future = SLOT(store, SingleStore__answered);
    if (IS_EXACTLY(future, StateFuture) && Py_REFCNT(future) == 1) {
        Py_INCREF(future);
        set_slot(future, StateFuture_answer, Py_NewRef(value));
        return future;
    }
    PyObject *args[] = {value, SLOT(store, StateStore__task)};
    if (types[StateFuture_class] == NULL) {
        PyErr_BadInternalCall();
        return NULL;
    }
    future = PyObject_Vectorcall((PyObject *)types[StateFuture_class], args, 2, NULL);
    if (future != NULL) {
        set_slot(store, SingleStore__answered, Py_NewRef(future));
    }
    return future;
}

/* Count a read that the cache has answered; return -1 with an exception. */
static int
count_hit(PyObject *store)
{
    PyObject *hits = SLOT(store, StateStore_hits);
    PyObject *more = hits == NULL ? NULL : PyNumber_Add(hits, one);
    if (more == NULL) {
        return -1;
    }
    set_slot(store, StateStore_hits, more);
    return 0;
}

static PyObject *
value_of(PyObject *store, int method)
{
    PyObject *context = context_at_hand(store);
    PyObject *cell = context == NULL ? NULL : cell_of(store, context);
    PyObject *value = cell == NULL ? NULL : SLOT(cell, Cell_value);
    if (value == NULL || (method == VALUE && SLOT(store, StateStore_hits) == NULL)) {
        Py_XDECREF(cell);
        return PyErr_Occurred() ? NULL : leave_to_python(method, store, NULL, 0, NULL);
    }
    Py_INCREF(value);
    Py_DECREF(cell);
    if (method == BLOCKING_VALUE) {
        return value;
    }
    PyObject *future = count_hit(store) < 0 ? NULL : answered(store, value);
    Py_DECREF(value);
    return future;
}

/* `ValueStore.value` of a cached value without TTL. */
static PyObject *
store_value(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return value_of(self, VALUE);
}

static PyObject *
blocking_value(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return value_of(self, BLOCKING_VALUE);
}

/* Set the value of a cell without TTL, and its time. Takes both references. */
static void
set_value(PyObject *cell, PyObject *value, PyObject *timestamp)
{
    set_slot(cell, Cell_value, value);
    set_slot(cell, Cell_stamp, timestamp);
    set_slot(cell, Cell_own_ttl, Py_NewRef(zero));
    set_slot(cell, Cell_dirty, Py_NewRef(Py_True));
}

static PyObject *
update(PyObject *store, int method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    int is_common = nargs == 1 && kwnames == NULL && args[0] != Py_None;
    PyObject *context = is_common ? context_at_hand(store) : NULL;
    PyObject *timestamp = context == NULL ? NULL : SLOT(context, ProcessContext_timestamp);
    PyObject *result = method == UPDATE ? SLOT(store, StateStore__done) : Py_None;
    PyObject *cell = timestamp == NULL || result == NULL ? NULL : cell_of(store, context);
    if (cell == NULL) {
        return PyErr_Occurred() ? NULL : leave_to_python(method, store, args, nargs, kwnames);
    }
    Py_INCREF(result);
    Py_INCREF(timestamp);
    set_value(cell, Py_NewRef(args[0]), timestamp);
    Py_DECREF(cell);
    return result;
}

/* `ValueStore.update` of a cached value without TTL. */
static PyObject *
store_update(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return update(self, UPDATE, args, nargs, kwnames);
}

static PyObject *
blocking_update(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return update(self, BLOCKING_UPDATE, args, nargs, kwnames);
}

/* What a call of a handle of accumulators needs: references of its own, while code of the user runs. */
typedef struct {
    PyObject *store, *cell, *accumulator, *timestamp;
} Entry;

static void
leave(Entry *entry)
{
    Py_XDECREF(entry->store);
    Py_XDECREF(entry->cell);
    Py_XDECREF(entry->accumulator);
    Py_XDECREF(entry->timestamp);
}

/* Find the cached cell of a handle's key and namespace, with an accumulator: return 1, 0 if Python has to, or -1 with an
 * exception. */
static int
find_entry(PyObject *handle, Entry *entry)
{
    PyObject *store = SLOT(handle, SingleHandle__store), *suffix = SLOT(handle, SingleHandle__suffix);
    PyObject *context = IS_EXACTLY(store, AggregatingStore) ? context_at_hand(store) : NULL;
    PyObject *timestamp = context == NULL ? NULL : SLOT(context, ProcessContext_timestamp);
    PyObject *name = context == NULL ? NULL : SLOT(context, RecordContext_key_json);
    if (timestamp == NULL || name == NULL || !PyBytes_CheckExact(name) || suffix == NULL || !PyBytes_CheckExact(suffix)
        || SLOT(store, StateStore_hits) == NULL || SLOT(store, StateStore__done) == NULL
        || SLOT(store, AggregatingStore__add) == NULL || SLOT(store, AggregatingStore__get_result) == NULL) {
        return 0;
    }
    Py_INCREF(name);
    if (PyBytes_GET_SIZE(suffix)) {
        PyBytes_Concat(&name, suffix);
    }
    PyObject *cell = name == NULL ? NULL : cell_named(store, name);
    Py_XDECREF(name);
    PyObject *accumulator = cell == NULL ? NULL : SLOT(cell, Cell_value);
    if (accumulator == NULL || accumulator == Py_None) { /* Python makes the first one */
        Py_XDECREF(cell);
        return PyErr_Occurred() ? -1 : 0;
    }
    *entry = (Entry){Py_NewRef(store), cell, Py_NewRef(accumulator), Py_NewRef(timestamp)};
    return 1;
}

/* Return the answer of a finished call: a future, or in a plain `def` the value. */
static PyObject *
answer(PyObject *store, PyObject *value)
{
    if (SLOT(store, StateStore_blocking) == Py_True) {
        return Py_NewRef(value);
    }
    return value == Py_None ? Py_XNewRef(SLOT(store, StateStore__done)) : answered(store, value);
}

/* `AggregatingHandle.add` to a cached accumulator without TTL. */
static PyObject *
handle_add(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Entry entry;
    int is_common = nargs == 1 && kwnames == NULL && args[0] != Py_None ? find_entry(self, &entry) : 0;
    if (is_common <= 0) {
        return is_common < 0 ? NULL : leave_to_python(ADD, self, args, nargs, kwnames);
    }
    PyObject *both[] = {args[0], entry.accumulator}, *result = NULL;
    PyObject *add = Py_NewRef(SLOT(entry.store, AggregatingStore__add));
    PyObject *sum = count_hit(entry.store) < 0 ? NULL : PyObject_Vectorcall(add, both, 2, NULL);
    Py_DECREF(add);
    if (sum != NULL) {
        PyObject *stamp = sum == Py_None ? SLOT(entry.cell, Cell_stamp) : entry.timestamp; /* None removes the entry */
        set_value(entry.cell, sum, Py_NewRef(stamp));
        result = answer(entry.store, Py_None);
    }
    leave(&entry);
    return result;
}

/* `AggregatingHandle.get` of a cached accumulator without TTL. */
static PyObject *
handle_get(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Entry entry;
    int is_common = find_entry(self, &entry);
    if (is_common <= 0) {
        return is_common < 0 ? NULL : leave_to_python(GET, self, NULL, 0, NULL);
    }
    PyObject *get_result = Py_NewRef(SLOT(entry.store, AggregatingStore__get_result));
    PyObject *value = count_hit(entry.store) < 0 ? NULL : PyObject_CallOneArg(get_result, entry.accumulator);
    Py_DECREF(get_result);
    PyObject *result = value == NULL ? NULL : answer(entry.store, value);
    Py_XDECREF(value);
    leave(&entry);
    return result;
}

/* ------------------------------------------------------------------------------------------ what code emits */

/* Return the place of an output: its cause's, and its index as four bytes (`plan.order`). */
static PyObject *
output_order(PyObject *cause, uint32_t index)
{
    Py_ssize_t size = PyBytes_GET_SIZE(cause);
    PyObject *order = PyBytes_FromStringAndSize(NULL, size + 4);
    if (order != NULL) {
        unsigned char *bytes = (unsigned char *)PyBytes_AS_STRING(order);
        memcpy(bytes, PyBytes_AS_STRING(cause), size);
        for (int byte = 0; byte < 4; byte++) {
            bytes[size + byte] = (unsigned char)(index >> (24 - 8 * byte));
        }
    }
    return order;
}

/* Append an `Emitted` to a list; return -1 with an exception. Takes the reference of `order`. */
static int
emit(PyObject *list, PyObject *order, PyObject *timestamp, PyObject *kind, PyObject *record)
{
    PyTypeObject *type = types[Emitted_class];
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
    int failed = PyList_Append(list, emitted);
    Py_DECREF(emitted);
    return failed;
}

static PyObject *insert_kind; /* the kind that `collect` gives by default */

/* `ProcessContext.collect` of a record of the output's very type, at the context's own time. */
static PyObject *
collect(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *outputs = SLOT(self, ProcessContext__outputs), *order = SLOT(self, ProcessContext_order);
    PyObject *index = SLOT(self, ProcessContext_index), *timestamp = SLOT(self, ProcessContext_timestamp);
    if (!is_on || kwnames != NULL || nargs < 1 || nargs > 2 || !IS_EXACTLY(outputs, Outputs) || order == NULL
        || !PyBytes_CheckExact(order) || index == NULL || !PyLong_CheckExact(index) || timestamp == NULL
        || types[Emitted_class] == NULL) {
        return leave_to_python(COLLECT, self, args, nargs, kwnames);
    }
    PyObject *list = SLOT(outputs, Outputs_main);
    long long place = index == zero ? 0 : PyLong_AsLongLong(index);
    if ((PyObject *)Py_TYPE(args[0]) != SLOT(outputs, Outputs_type) || list == NULL || !PyList_CheckExact(list)
        || place < 0 || place > UINT32_MAX) {
        PyErr_Clear(); /* of a number that is too large: Python raises its own */
        return leave_to_python(COLLECT, self, args, nargs, kwnames);
    }
    PyObject *next = PyLong_FromLongLong(place + 1);
    PyObject *own_order = next == NULL ? NULL : output_order(order, (uint32_t)place);
    if (own_order == NULL) {
        Py_XDECREF(next);
        return NULL;
    }
    Py_INCREF(list);
    Py_INCREF(timestamp);
    set_slot(self, ProcessContext_index, next);
    int failed = emit(list, own_order, timestamp, nargs == 2 ? args[1] : insert_kind, args[0]);
    Py_DECREF(list);
    Py_DECREF(timestamp);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* ------------------------------------------------------------------------------------------ loop over records */

/* The same as the coroutine `KeyedProcess._run_at_once`, where the reasons are. */
typedef struct {
    PyObject *process, *controller, *inputs, *due, *before, *kinds, *watermark;
    long long watermark_ms;
    int is_plain;
    PyObject *context; /* serves the next record if only the controller and this loop refer to it */
    Py_ssize_t late;
} Loop;

static int
start(Loop *loop)
{
    PyObject *is_plain = PyObject_GetAttrString(loop->process, "_is_plain");
    if (is_plain == NULL) {
        return -1;
    }
    loop->is_plain = is_plain == Py_True;
    Py_DECREF(is_plain);
    if ((loop->controller = PyObject_GetAttrString(loop->process, "controller")) == NULL
        || (loop->inputs = PyObject_GetAttrString(loop->process, "_inputs")) == NULL
        || (loop->due = PyObject_GetAttrString(loop->process, "due")) == NULL
        || (loop->before = PyObject_GetAttrString(loop->process, "before")) == NULL) {
        return -1;
    }
    if (!PyTuple_CheckExact(loop->inputs) || !PyTuple_CheckExact(loop->kinds)) {
        PyErr_SetString(PyExc_TypeError, "inputs and kinds of rows must be tuples");
        return -1;
    }
    loop->watermark_ms = PyLong_AsLongLong(loop->watermark);
    return loop->watermark_ms == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Add the late records to the count of the process. An exception that is set stays. */
static void
finish(Loop *loop, PyObject **result)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    if (loop->late) {
        PyObject *before = PyObject_GetAttrString(loop->process, "_late"), *late = PyLong_FromSsize_t(loop->late);
        PyObject *sum = before == NULL || late == NULL ? NULL : PyNumber_Add(before, late);
        if (sum == NULL || PyObject_SetAttrString(loop->process, "_late", sum) < 0) {
            Py_CLEAR(*result);
        }
        Py_XDECREF(before);
        Py_XDECREF(late);
        Py_XDECREF(sum);
    }
    if (type != NULL) {
        PyErr_Restore(type, error, traceback);
    }
    Py_XDECREF(loop->controller);
    Py_XDECREF(loop->inputs);
    Py_XDECREF(loop->due);
    Py_XDECREF(loop->before);
    Py_XDECREF(loop->context);
}

/* Make a context for the next record; return -1 with an exception. */
static int
renew_context(Loop *loop)
{
    if (loop->context != NULL) {
        set_slot(loop->context, RecordContext_references, Py_NewRef(zero));
    }
    PyObject *context = PyObject_CallMethod(loop->process, "_context_at_once", "(O)", loop->watermark);
    if (context != NULL && !IS_EXACTLY(context, ProcessContext)) {
        Py_CLEAR(context);
        PyErr_SetString(PyExc_TypeError, "a record needs a ProcessContext");
    }
    Py_XSETREF(loop->context, context);
    return context == NULL ? -1 : 0;
}

/* Return an item of a tuple, borrowed; NULL with an exception. */
static PyObject *
item_at(PyObject *tuple, PyObject *index)
{
    Py_ssize_t place = PyNumber_AsSsize_t(index, PyExc_IndexError);
    return place == -1 && PyErr_Occurred() ? NULL : PyTuple_GetItem(tuple, place);
}

/* Let the context serve an element. Return the function for it, borrowed from the inputs; NULL with an exception. */
static PyObject *
enter(Loop *loop, PyObject *element)
{
    if (!PyTuple_Check(element) || PyTuple_GET_SIZE(element) != 6) {
        PyErr_SetString(PyExc_TypeError, "an element is a tuple of six");
        return NULL;
    }
    PyObject *timestamp = PyTuple_GET_ITEM(element, 1);
    long long time = PyLong_AsLongLong(timestamp);
    if (time == -1 && PyErr_Occurred()) {
        return NULL;
    }
    loop->late += time <= loop->watermark_ms;
    if (Py_REFCNT(loop->context) != 2 && renew_context(loop) < 0) {
        return NULL;
    }
    PyObject *row_kind = item_at(loop->kinds, PyTuple_GET_ITEM(element, 2));
    PyObject *function = row_kind == NULL ? NULL : item_at(loop->inputs, PyTuple_GET_ITEM(element, 5));
    if (function == NULL) {
        return NULL;
    }
    PyObject *context = loop->context;
    set_slot(context, RecordContext_key_json, Py_NewRef(PyTuple_GET_ITEM(element, 3)));
    set_slot(context, RecordContext_record, Py_NewRef(PyTuple_GET_ITEM(element, 4)));
    set_slot(context, ProcessContext_function, Py_NewRef(function));
    set_slot(context, ProcessContext_index, Py_NewRef(zero));
    set_slot(context, ProcessContext_order, Py_NewRef(PyTuple_GET_ITEM(element, 0)));
    set_slot(context, ProcessContext_timestamp, Py_NewRef(timestamp));
    set_slot(context, ProcessContext_row_kind, Py_NewRef(row_kind));
    return function;
}

/* Call a method for its effect: return -1 with an exception. */
static int
call(PyObject *object, const char *method, PyObject *argument, PyObject *second)
{
    PyObject *done = PyObject_CallMethod(object, method, second == NULL ? "(O)" : "(OO)", argument, second);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Run what is due before the context, and the context behind it: return 1 if there is any, 0, or -1 with an exception. */
static int
run_behind_due(Loop *loop)
{
    int is_due = PyObject_IsTrue(loop->due);
    if (is_due <= 0) {
        return is_due;
    }
    PyObject *earlier = PyObject_CallOneArg(loop->before, loop->context);
    if (earlier == NULL) {
        return -1;
    }
    if (earlier == Py_None) {
        Py_DECREF(earlier);
        return 0;
    }
    set_slot(loop->context, RecordContext_references, Py_NewRef(zero)); /* it has not begun */
    int failed = call(loop->controller, "run_behind", earlier, loop->context);
    Py_DECREF(earlier);
    return failed ? -1 : 1;
}

/* Raise the error of a plain function that returned something. */
static void
refuse_returned(Loop *loop, PyObject *returned)
{
    PyObject *function = PyObject_GetAttrString(loop->process, "_function");
    PyObject *error = function == NULL ? NULL : PyObject_CallMethod(function, "not_plain", "(O)", returned);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    }
    Py_XDECREF(function);
    Py_XDECREF(error);
}

/* Run the code of a record: 0 when it has ended, 1 with `*waiting` when it waits, a pair of its coroutine and of what that
 * awaits, -1 with an exception. */
static int
run_code(Loop *loop, PyObject *function, PyObject *record, PyObject **waiting)
{
    PyObject *args[] = {NULL, record, loop->context}; /* the first one is a place for `self`, which saves a copy */
    PyObject *code = PyObject_Vectorcall(function, args + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    if (code == NULL || code == Py_None) {
        Py_XDECREF(code);
        return code == NULL ? -1 : 0;
    }
    if (loop->is_plain) {
        refuse_returned(loop, code);
        Py_DECREF(code);
        return -1;
    }
    if (!PyCoro_CheckExact(code)) { /* something else that can be awaited, perhaps */
        Py_SETREF(code, PyObject_CallMethod(loop->controller, "awaiting", "(O)", code));
        if (code == NULL) {
            return -1;
        }
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

/* Return whether the context's code is to be finished by the controller: it made a request, or chained a callback, or has an
 * overdue timer. -1 with an exception. */
static int
is_unfinished(PyObject *context)
{
    PyObject *overdue = SLOT(context, RecordContext_overdue);
    if (SLOT(context, RecordContext_epoch) != Py_None || SLOT(context, RecordContext_callbacks) != Py_None) {
        return 1;
    }
    return overdue == NULL || overdue == Py_None ? 0 : PyObject_IsTrue(overdue);
}

/* Process an element: 0 when the next one may follow, 1 when the loop has to end, -1 with an exception. */
static int
take(Loop *loop, PyObject *element, PyObject **waiting)
{
    PyObject *function = enter(loop, element);
    int ends = function == NULL ? -1 : run_behind_due(loop);
    if (ends == 0) {
        ends = run_code(loop, function, PyTuple_GET_ITEM(element, 4), waiting);
    }
    if (ends == 0) {
        ends = is_unfinished(loop->context);
        if (ends > 0 && call(loop->controller, "end_of_code", loop->context, NULL) < 0) {
            return -1;
        }
    }
    return ends;
}

PyDoc_STRVAR(run_at_once_doc,
             "run_at_once($module, process, elements, watermark, kinds, /)\n--\n\n"
             "Run the code of one record after the other, until one has to wait. Return a pair of its coroutine and of what it\n"
             "awaits; None if it waits for a timer or for the end of its requests and callbacks, or if there are no more records.");

static PyObject *
run_at_once(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyIter_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "run_at_once() takes a process, an iterator of elements, a watermark and the kinds of rows");
        return NULL;
    }
    Loop loop = {.process = args[0], .watermark = args[2], .kinds = args[3]};
    PyObject *result = NULL;
    int ends = start(&loop) < 0 ? -1 : renew_context(&loop);
    while (ends == 0) {
        PyObject *element = PyIter_Next(args[1]);
        if (element == NULL) {
            if (PyErr_Occurred()) {
                ends = -1;
                break;
            }
            set_slot(loop.context, RecordContext_references, Py_NewRef(zero));
            break;
        }
        ends = take(&loop, element, &result);
        Py_DECREF(element);
    }
    if (ends >= 0 && result == NULL) {
        result = Py_NewRef(Py_None);
    }
    finish(&loop, &result);
    return result;
}

/* ------------------------------------------------------------------------------------------ module */

#define WITH_NAMES METH_FASTCALL | METH_KEYWORDS
#define FUNCTION(function) (PyCFunction)(void (*)(void))(function)

static struct {
    int class;
    PyMethodDef definition;
} methods[] = {
    [VALUE] = {ValueStore_class, {"value", store_value, METH_NOARGS, "value($self, /)\n--\n\nRead the key's value."}},
    [UPDATE] = {ValueStore_class, {"update", FUNCTION(store_update), WITH_NAMES,
                "update($self, value, /, ttl=None)\n--\n\nSet the key's value; None is the same as `clear`."}},
    [BLOCKING_VALUE] = {BlockingValueStore_class, {"value", blocking_value, METH_NOARGS,
                        "value($self, /)\n--\n\nRead the key's value."}},
    [BLOCKING_UPDATE] = {BlockingValueStore_class, {"update", FUNCTION(blocking_update), WITH_NAMES,
                         "update($self, value, /, ttl=None)\n--\n\nSet the key's value; None is the same as `clear`."}},
    [ADD] = {AggregatingHandle_class, {"add", FUNCTION(handle_add), WITH_NAMES,
             "add($self, value, /, ttl=None)\n--\n\nAdd `value` to the accumulator. Raises `ValueError` for None."}},
    [GET] = {AggregatingHandle_class, {"get", handle_get, METH_NOARGS,
             "get($self, /)\n--\n\nRead the result; `None` if nothing was added, or it has expired."}},
    [COLLECT] = {ProcessContext_class, {"collect", FUNCTION(collect), WITH_NAMES,
                 "collect($self, record, /, kind=RowKind.INSERT, timestamp=None)\n--\n\nEmit a record downstream."}},
    [AWAIT] = {StateFuture_class, {"__await__"}}, /* no method, but the slot of the type */
};

/* Look up the places of a class's slots; return -1 with an exception. */
static int
find_slots(PyObject *class, int number)
{
    for (int slot = 0; slot < N_SLOTS; slot++) {
        if (slots[slot].class != number) {
            continue;
        }
        PyObject *found = PyObject_GetAttrString(class, slots[slot].name);
        if (found == NULL) {
            return -1;
        }
        PyMemberDef *member = Py_IS_TYPE(found, &PyMemberDescr_Type) ? ((PyMemberDescrObject *)found)->d_member : NULL;
        if (member == NULL || member->type != T_OBJECT_EX) {
            Py_DECREF(found);
            PyErr_Format(PyExc_TypeError, "%s of %s must be a slot", slots[slot].name, class_names[number]);
            return -1;
        }
        places[slot] = member->offset;
        Py_DECREF(found);
    }
    return 0;
}

/* Replace a method of a class, and keep it; return -1 with an exception. */
static int
replace(PyTypeObject *type, int number)
{
    PyMethodDef *definition = &methods[number].definition;
    Py_XSETREF(in_python[number], PyObject_GetAttrString((PyObject *)type, definition->ml_name));
    if (in_python[number] == NULL) {
        return -1;
    }
    if (number == AWAIT) {
        type->tp_as_async->am_await = future_await;
        return 0;
    }
    if (number == COLLECT) {
        PyObject *defaults = PyFunction_Check(in_python[COLLECT]) ? PyFunction_GetDefaults(in_python[COLLECT]) : NULL;
        if (defaults == NULL || PyTuple_GET_SIZE(defaults) != 2) {
            PyErr_SetString(PyExc_TypeError, "collect() must have two defaults");
            return -1;
        }
        Py_XSETREF(insert_kind, Py_NewRef(PyTuple_GET_ITEM(defaults, 0)));
    }
    PyObject *method = PyDescr_NewMethod(type, definition);
    int failed = method == NULL ? -1 : PyObject_SetAttrString((PyObject *)type, definition->ml_name, method);
    Py_XDECREF(method);
    return failed;
}

PyDoc_STRVAR(attach_doc, "attach($module, cls, /)\n--\n\nReplace the methods of a class of the engine that this module has, too.");

static PyObject *
attach(PyObject *Py_UNUSED(module), PyObject *class)
{
    if (!PyType_Check(class) || !PyType_HasFeature((PyTypeObject *)class, Py_TPFLAGS_HEAPTYPE)) {
        PyErr_SetString(PyExc_TypeError, "attach() takes a class");
        return NULL;
    }
    PyObject *name = PyObject_GetAttrString(class, "__name__");
    int number = 0;
    while (name != NULL && number < N_CLASSES && PyUnicode_CompareWithASCIIString(name, class_names[number])) {
        number++;
    }
    Py_XDECREF(name);
    if (name == NULL || number == N_CLASSES) {
        return name == NULL ? NULL : PyErr_Format(PyExc_TypeError, "nothing is known of %R", class);
    }
    PyTypeObject *type = (PyTypeObject *)class;
    if (number == Emitted_class && (type->tp_base != &PyTuple_Type || type->tp_basicsize != PyTuple_Type.tp_basicsize)) {
        return PyErr_Format(PyExc_TypeError, "%R must be a tuple without more fields", class);
    }
    if (types[number] == type) {
        return Py_NewRef(class); /* its methods are replaced already: those in Python are found no more */
    }
    if (find_slots(class, number) < 0) {
        return NULL;
    }
    Py_INCREF(class);
    Py_XSETREF(types[number], type);
    for (int method = 0; method < N_METHODS; method++) {
        if (methods[method].class == number && replace(type, method) < 0) {
            return NULL;
        }
    }
    return Py_NewRef(class);
}

PyDoc_STRVAR(switch_doc, "switch($module, is_on, /)\n--\n\nUse the methods in C, or those in Python; return what was used before.");

static PyObject *
switch_(PyObject *Py_UNUSED(module), PyObject *wanted)
{
    int before = is_on, after = PyObject_IsTrue(wanted);
    if (after < 0) {
        return NULL;
    }
    is_on = after;
    return PyBool_FromLong(before);
}

PyDoc_STRVAR(is_on_doc, "is_on($module, /)\n--\n\nReturn whether the methods in C are used.");

static PyObject *
tell_is_on(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(is_on);
}

static PyMethodDef functions[] = {
    {"attach", attach, METH_O, attach_doc},
    {"is_on", tell_is_on, METH_NOARGS, is_on_doc},
    {"run_at_once", FUNCTION(run_at_once), METH_FASTCALL, run_at_once_doc},
    {"switch", switch_, METH_O, switch_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace.native._engine",
    .m_doc = "The engine's hottest code in C.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__engine(void)
{
    zero = PyLong_FromLong(0);
    one = PyLong_FromLong(1);
    if (zero == NULL || one == NULL || PyType_Ready(&Waiter_Type) < 0) {
        return NULL;
    }
    return PyModule_Create(&module);
}
