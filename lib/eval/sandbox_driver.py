"""The two interpreters that decide whether a program passes its test (lib/eval/sandbox.c starts both).

`judge` runs the test and writes the verdict; `program` runs what the model wrote. They are two processes, so that
nothing the program does to its interpreter reaches the verdict: what the judge gets of a call is data, of built-in
types alone. In the judge's namespace the tested name is a Remote, whose calls are lines of JSON over a pipe. Arguments
are copied; what the call changed in lists, dicts, sets, bytearrays and deques is copied back into the same objects. An
object of any other type stays with the program: it can be called, iterated, indexed and asked for its length, but it
equals only itself.

Judge: reads from descriptor 0, writes to 1 an "r" when the time begins and the nonce when the test has passed, requests to 3, reads answers from 4.
Program: reads requests from 0, writes answers to 1.
"""
import builtins
import json
import os
import sys
import types
from collections import deque

MUTABLE = {"list": list, "dict": dict, "set": set, "bytearray": bytearray, "deque": deque}
NUMBERS = {"Fraction": "fractions", "Decimal": "decimal"}  # their modules are imported where they are used
OPERATIONS = ("__call__", "__iter__", "__next__", "__len__", "__getitem__", "__contains__", "__bool__")
SMALL = 1 << 62  # a larger int is hexadecimal, for which Python has no limit of digits


class Packer:
    """Values as JSON. table: the mutable containers of a call's arguments, by which both sides name them."""

    def __init__(self, opaque, table, names_new):
        self.opaque = opaque
        self.table = table
        self.names_new = names_new
        self.numbers = {id(value): i for i, value in enumerate(table)}

    def pack(self, value):
        if value is None or isinstance(value, (bool, float, str)):
            return value
        if isinstance(value, int):
            return value if -SMALL < value < SMALL else ["int", hex(value)]
        if id(value) in self.numbers:
            return ["=", self.numbers[id(value)]]
        if isinstance(value, tuple):
            return ["tuple", self.all(tuple.__iter__(value))]
        for kind, cls in MUTABLE.items():
            if isinstance(value, cls):
                return [kind, self.name(value), self.contents(value)]
        return self.pack_rare(value)

    def pack_rare(self, value):
        if isinstance(value, complex):
            return ["complex", value.real, value.imag]
        if isinstance(value, bytes):
            return ["bytes", value.hex()]
        if isinstance(value, frozenset):
            return ["frozenset", self.all(value)]
        if isinstance(value, range):
            return ["range", self.all((value.start, value.stop, value.step))]
        if isinstance(value, type({}.keys())):
            return ["keys", self.all(value)]
        if isinstance(value, type({}.items())):
            return ["items", self.all(value)]
        for kind, module in NUMBERS.items():
            if module in sys.modules and isinstance(value, getattr(sys.modules[module], kind)):
                return [kind, str(value)]
        return self.opaque(value)

    def all(self, values):
        return [self.pack(value) for value in values]

    def name(self, value):
        if not self.names_new:
            return -1
        self.numbers[id(value)] = len(self.table)
        self.table.append(value)
        return len(self.table) - 1

    def contents(self, value):
        if isinstance(value, dict):
            return [[self.pack(k), self.pack(v)] for k, v in dict.items(value)]
        if isinstance(value, bytearray):
            return value.hex()
        if isinstance(value, deque):
            return [value.maxlen, self.all(value)]
        return self.all(value)


class Unpacker:
    """The other direction. It makes nothing but built-in types, whatever the data are, and what remote() makes."""

    def __init__(self, remote, table):
        self.remote = remote
        self.table = table

    def unpack(self, data):
        if not isinstance(data, list):
            if isinstance(data, dict):
                raise ValueError(data)
            return data
        kind, *rest = data
        if kind in MUTABLE:
            number, contents = rest
            value = deque(maxlen=contents[0]) if kind == "deque" else MUTABLE[kind]()
            if number != -1:
                if number != len(self.table):
                    raise ValueError(number)
                self.table.append(value)
            self.fill(value, contents)
            return value
        return getattr(self, "unpack_" + {"=": "known"}.get(kind, kind))(*rest)

    def fill(self, value, contents):
        if isinstance(value, bytearray):
            value[:] = bytes.fromhex(contents)
        elif isinstance(value, list):
            value[:] = self.all(contents)
        else:
            new = [(self.unpack(k), self.unpack(v)) for k, v in contents] if isinstance(value, dict) else \
                self.all(contents[1] if isinstance(value, deque) else contents)
            value.clear()
            (value.extend if isinstance(value, deque) else value.update)(new)

    def all(self, data):
        return [self.unpack(value) for value in data]

    def unpack_known(self, number):
        if number < 0:
            raise ValueError(number)
        return self.table[number]

    def unpack_int(self, text):
        return int(text, 16)

    def unpack_tuple(self, data):
        return tuple(self.all(data))

    def unpack_complex(self, real, imag):
        return complex(real, imag)

    def unpack_bytes(self, text):
        return bytes.fromhex(text)

    def unpack_frozenset(self, data):
        return frozenset(self.all(data))

    def unpack_range(self, data):
        return range(*self.all(data))

    def unpack_keys(self, data):
        return dict.fromkeys(self.all(data)).keys()

    def unpack_items(self, data):
        return dict(self.all(data)).items()

    def unpack_Fraction(self, text):
        from fractions import Fraction
        return Fraction(text)

    def unpack_Decimal(self, text):
        from decimal import Decimal
        return Decimal(text)

    def unpack_object(self, number, operations):
        return self.remote(number, operations)


def send(pipe, data):
    pipe.write((json.dumps(data) + "\n").encode())
    pipe.flush()


# ---- the program's interpreter ----

class Server:
    """Runs the program, then the calls that the judge asks for."""

    def __init__(self, answers):
        self.answers = answers
        self.objects = []
        self.numbers = {}

    def opaque(self, value):
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return ["object", self.numbers[id(value)], [name for name in OPERATIONS if hasattr(type(value), name)]]

    def answer(self, compute, table):
        packer = Packer(self.opaque, table, False)
        try:
            reply = ["value", packer.pack(compute())]
        except BaseException as e:
            names = [cls.__name__ for cls in type(e).__mro__ if getattr(builtins, cls.__name__, None) is cls]
            reply = ["raise", names, self.text_of(e)]
        send(self.answers, reply + [[packer.contents(value) for value in table]])

    @staticmethod
    def text_of(error):
        """What str() of it gives in the test, where that is its one argument, as with most errors."""
        if isinstance(error, Exception) and not error.args:
            return ""
        if isinstance(error, Exception) and len(error.args) == 1 and type(error.args[0]) is str:
            return error.args[0]
        return ascii(error)

    def run(self, text, entry):
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        module.__dict__["__name__"] = "builtins"  # as for exec() with no globals: what asks for "__main__" is not run
        exec(compile(text, "program", "exec", dont_inherit=True), module.__dict__)
        return module.__dict__[entry] if entry else None

    def serve(self, number, operation, args, kwargs):
        table = []
        unpacker = Unpacker(lambda number, operations: self.objects[number], table)
        args, kwargs = unpacker.all(args), {k: unpacker.unpack(v) for k, v in kwargs.items()}
        target = self.objects[number]
        if operation == "getattr":
            self.answer(lambda: getattr(target, *args), table)
        elif operation == "__call__":
            self.answer(lambda: target(*args, **kwargs), table)
        else:
            self.answer(lambda: getattr(target, operation)(*args), table)


def program():
    requests = open(os.dup(0), "rb")
    server = Server(open(os.dup(1), "wb"))
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    sys.stdin = open(0)
    sys.argv = [""]
    send(server.answers, "ready")
    text, entry = json.loads(requests.readline())
    server.answer(lambda: server.run(text, entry), [])
    for request in requests:
        server.serve(*json.loads(request))


# ---- the judge's ----

class Client:
    """The judge's end: what does not follow the protocol ends it without a verdict."""

    def __init__(self, requests, answers):
        self.requests = requests
        self.answers = answers
        self.remotes = {}

    def request(self, data, table):
        try:
            send(self.requests, data)
            kind, *rest, states = json.loads(self.answers.readline())
            unpacker = Unpacker(self.remote, table)
            if len(states) != len(table):
                raise ValueError(states)
            for value, contents in zip(list(table), states):
                unpacker.fill(value, contents)
            if kind == "value":
                return unpacker.unpack(*rest)
            error = self.error(*rest)
        except BaseException:
            os._exit(1)
        raise error

    def error(self, names, text):
        for name in names:
            cls = getattr(builtins, name, None)
            if isinstance(cls, type) and issubclass(cls, BaseException):
                try:
                    return cls(text)
                except TypeError:  # UnicodeDecodeError, which takes more
                    continue
        return Exception(text)

    def remote(self, number, operations):
        if number not in self.remotes:
            members = {name: self.method(number, name) for name in OPERATIONS if name in operations}
            members["__getattr__"] = self.attribute(number)
            members["remote_number"] = number
            self.remotes[number] = type("Remote", (Remote,), members)()
        return self.remotes[number]

    def call(self, number, operation, args, kwargs):
        packer = Packer(refuse, [], True)
        args, kwargs = packer.all(args), {k: packer.pack(v) for k, v in kwargs.items()}
        return self.request([number, operation, args, kwargs], packer.table)

    def method(self, number, name):
        return lambda _, *args, **kwargs: self.call(number, name, args, kwargs)

    def attribute(self, number):
        def get(_, name):
            if name.startswith("_"):
                raise AttributeError(name)
            return self.call(number, "getattr", (name,), {})
        return get


class Remote:
    """An object of the program's. Equality is identity: the program has no say in it."""


def refuse(value):
    if isinstance(value, Remote):
        return ["object", value.remote_number, []]
    raise TypeError(f"a test can't give a program an object of {type(value).__name__}")


def run_given(given, namespace):
    """A prompt ends in the head of the function that is tested, which may lack a body."""
    for text in (given, given + "\n    pass\n"):
        try:
            code = compile(text, "given", "exec", dont_inherit=True)
        except SyntaxError:
            continue
        exec(code, namespace)
        return


def judge():
    source = sys.stdin.buffer
    nonce = source.read(32)
    text, given, test, entry = [source.read(n).decode() for n in [int(n) for n in source.readline().split()]]
    client = Client(open(3, "wb"), open(4, "rb"))
    if json.loads(client.answers.readline()) != "ready":
        os._exit(1)
    os.write(1, b"r")  # the program's time begins: both interpreters are there
    try:
        # A program that takes part of the test into a bracket or a string of its own is wrong as a whole.
        compile(text + test, "program", "exec", dont_inherit=True)
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        run_given(given, module.__dict__)
        tested = client.request([text, entry], [])
        if entry:
            module.__dict__[entry] = tested
        exec(compile(test, "test", "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        os._exit(1)
    os.write(1, nonce)
    os._exit(0)


judge() if sys.argv[1] == "judge" else program()
