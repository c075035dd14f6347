/*
 * shared.cc - a block's shared memory, so that what is wrong with its use is seen
 *
 * Dynamic shared memory ends where a page ends that nobody may touch, to the 16 bytes that vector
 * accesses are aligned to; the bytes between are looked at when a block has ended. All of it, and
 * every static __shared__ variable, is filled with 0xff before each block: NaN as a float, far out
 * of any table as an index.
 *
 * Asynchronous copies (cp.async) land as late as they may: at the wait of the thread that issued
 * them, in groups as committed. Until then their target holds 0xff, so whoever reads it before, or
 * still reads what was there, has something else than the data. LMTRAIN_EMULATE_ASYNC=early lets
 * them land when they are issued, which is as legal: what is right is right in both.
 *
 * Static __shared__ variables are thread_local ones of functions. The program's own symbol table
 * tells where they are: names begin with _ZZ, the mark of a function's variable, and no other
 * thread_local variable of a C++ function exists here.
 */
#include "emulate_impl.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>

enum { PAGE = 4096, SHARED_ROOM = (227 << 10) / PAGE * PAGE + PAGE, ALIGN = 16 };

/* ---- static variables
 * -------------------------------------------------------------------------- */

struct static_variable {
    size_t offset, n_bytes; /* in a thread's copy of the program's thread_local variables */
};

static const char *exe_path = "/proc/self/exe";

static std::vector<unsigned char> read_program(void)
{
    std::vector<unsigned char> bytes;
    FILE *file = fopen(exe_path, "rb");
    unsigned char some[1 << 16];
    size_t n;

    while (file && (n = fread(some, 1, sizeof some, file)) > 0)
        bytes.insert(bytes.end(), some, some + n);
    if (file)
        fclose(file);
    return bytes;
}

static std::vector<static_variable> find_static_shared(void)
{
    std::vector<unsigned char> program = read_program();
    const unsigned char *at = program.data();
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)(const void *)at;
    std::vector<static_variable> found;
    bool has_symbols = false;

    for (int s = 0; s < header->e_shnum; s++) {
        const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(at + header->e_shoff);
        const Elf64_Sym *symbols = (const Elf64_Sym *)(const void *)(at + sections[s].sh_offset);
        const char *names = (const char *)at + sections[sections[s].sh_link].sh_offset;

        if (sections[s].sh_type != SHT_SYMTAB)
            continue;
        has_symbols = true;
        for (size_t i = 0; i < sections[s].sh_size / sizeof *symbols; i++)
            if (ELF64_ST_TYPE(symbols[i].st_info) == STT_TLS &&
                !strncmp(names + symbols[i].st_name, "_ZZ", 3))
                found.push_back({ symbols[i].st_value, symbols[i].st_size });
    }
    if (!has_symbols) {
        fprintf(stderr,
                "emulated GPU: %s has no symbol table: its static shared memory cannot "
                "be found\n",
                exe_path);
        abort();
    }
    return found;
}

static const std::vector<static_variable> &static_shared(void)
{
    static const std::vector<static_variable> *spans =
        new std::vector<static_variable>(find_static_shared());

    return *spans;
}

/* Of the program, which is the first that is iterated over. */
static int first_object(struct dl_phdr_info *info, size_t, void *result)
{
    *(unsigned char **)result = (unsigned char *)info->dlpi_tls_data;
    return 1;
}

static thread_local unsigned char *variables;

static unsigned char *own_variables(void)
{
    if (!variables)
        dl_iterate_phdr(first_object, &variables);
    return variables;
}

/* By span: whether a block of this OS thread is known to have written it. */
static thread_local std::vector<bool> is_used;

/* All for a launch's first two blocks, then those that were written: to look at all would take
 * longer than most blocks do. */
static void poison_static(int n_blocks_before)
{
    const std::vector<static_variable> &spans = static_shared();
    unsigned char *begin = own_variables();

    is_used.resize(spans.size());
    for (size_t i = 0; i < spans.size(); i++) {
        unsigned char *at = begin + spans[i].offset;

        if (n_blocks_before > 1 && !is_used[i])
            continue;
        if (at[0] == 0xff && !memcmp(at, at + 1, spans[i].n_bytes - 1))
            continue;
        memset(at, 0xff, spans[i].n_bytes);
        is_used[i] = n_blocks_before > 0 || is_used[i];
    }
}

/* ---- dynamic
 * ----------------------------------------------------------------------------------- */

struct copy {
    unsigned char *to;
    const unsigned char *from; /* NULL: zeros */
    int n_bytes, group;
};

struct copy_queue {
    std::vector<copy> copies; /* that have not landed, in the order of issue */
    int n_committed;
};

struct shared_memory {
    unsigned char *map, *end; /* the guard page's begin */
    unsigned char *begin;     /* of the block's */
    size_t n_bytes;
    bool is_late;
    int n_blocks;                   /* of this launch that have begun */
    std::vector<copy_queue> queues; /* by thread */

    shared_memory()
    {
        map = (unsigned char *)mmap(NULL, SHARED_ROOM + PAGE, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED || mprotect(map + SHARED_ROOM, PAGE, PROT_NONE))
            abort();
        end = map + SHARED_ROOM;
    }
    ~shared_memory()
    {
        munmap(map, SHARED_ROOM + PAGE);
    }
};

static thread_local shared_memory shared;

void emulate_shared_open(size_t n_bytes, int n_threads)
{
    static const char *const ways[] = { "late", "early", NULL };

    shared.n_bytes = n_bytes;
    shared.begin = shared.end - (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
    shared.is_late = !emulate_choice("LMTRAIN_EMULATE_ASYNC", ways);
    shared.n_blocks = 0;
    shared.queues.resize((size_t)n_threads);
}

void emulate_block_begins(void)
{
    memset(shared.begin, 0xff, (size_t)(shared.end - shared.begin));
    poison_static(shared.n_blocks++);
    for (copy_queue &q : shared.queues) {
        q.copies.clear();
        q.n_committed = 0;
    }
}

void emulate_block_ends(void)
{
    for (const unsigned char *at = shared.begin + shared.n_bytes; at < shared.end; at++)
        if (*at != 0xff)
            emulate_fail("the block wrote byte %zu of its %zu bytes of dynamic shared memory",
                         (size_t)(at - shared.begin), shared.n_bytes);
}

void *emulate_shared(void)
{
    return shared.begin;
}

bool emulate_is_behind_shared(const void *at, size_t *beyond, size_t *n_bytes)
{
    const unsigned char *byte = (const unsigned char *)at;

    if (byte < shared.end || byte >= shared.end + PAGE)
        return false;
    *beyond = (size_t)(byte - shared.begin);
    *n_bytes = shared.n_bytes;
    return true;
}

static bool is_shared(const unsigned char *at, size_t n_bytes)
{
    const unsigned char *begin = own_variables();

    if (at >= shared.begin && at + n_bytes <= shared.begin + shared.n_bytes)
        return true;
    for (const static_variable &s : static_shared())
        if (at >= begin + s.offset && at + n_bytes <= begin + s.offset + s.n_bytes)
            return true;
    return false;
}

void emulate_check_shared(const void *at, int n_bytes, const char *instruction)
{
    if ((uintptr_t)at % (size_t)n_bytes)
        emulate_fail("%s of %d bytes at an address of shared memory that is not a multiple of them",
                     instruction, n_bytes);
    if (!is_shared((const unsigned char *)at, (size_t)n_bytes))
        emulate_fail("%s of %d bytes at an address that is not in the block's shared memory",
                     instruction, n_bytes);
}

/* ---- asynchronous copies
 * ----------------------------------------------------------------------- */

static void land(const copy &c)
{
    if (c.from)
        memcpy(c.to, c.from, (size_t)c.n_bytes);
    else
        memset(c.to, 0, (size_t)c.n_bytes);
}

void emulate_copy_async(void *to, const void *from, int n_bytes, bool is_given)
{
    copy_queue *q = &shared.queues[(size_t)emulate_thread()];
    copy c = { (unsigned char *)to, is_given ? (const unsigned char *)from : NULL, n_bytes,
               q->n_committed };

    if (n_bytes != 4 && n_bytes != 8 && n_bytes != 16)
        emulate_fail("cp.async of %d bytes, not 4, 8 or 16", n_bytes);
    emulate_check_shared(to, n_bytes, "cp.async");
    if ((uintptr_t)from % (size_t)n_bytes)
        emulate_fail("cp.async of %d bytes from an address that is not a multiple of them",
                     n_bytes);
    if (!shared.is_late) {
        land(c);
        return;
    }
    memset(to, 0xff, (size_t)n_bytes);
    q->copies.push_back(c);
}

void emulate_copy_commit(void)
{
    shared.queues[(size_t)emulate_thread()].n_committed++;
}

void emulate_copy_wait(int n_groups)
{
    copy_queue *q = &shared.queues[(size_t)emulate_thread()];
    size_t n = 0;

    while (n < q->copies.size() && q->copies[n].group < q->n_committed - n_groups)
        land(q->copies[n++]);
    q->copies.erase(q->copies.begin(), q->copies.begin() + (ptrdiff_t)n);
}
