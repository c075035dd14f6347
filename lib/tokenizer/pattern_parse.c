/*
 * pattern_parse.c - from a pattern's text to a program
 *
 * Written in one pass: what an operator applies to is already there when it is read, and room is
 * made before it. Groups are on a stack of our own.
 */
#include <string.h>

#include "base/str.h"
#include "tokenizer/pattern_impl.h"

enum { DEPTH_MAX = 16, COUNT_MAX = 64 };

struct pattern_group {
    int start, alternative; /* instructions where the group and its last alternative begin */
    bool ignores_case;      /* outside of it */
};

struct pattern_parser {
    struct pattern_program *program;
    const char *text;
    size_t n, at;
    struct pattern_group groups[DEPTH_MAX]; /* groups[0] is the whole */
    int depth;
    int atom; /* where the last atom begins, -1: there is none to repeat */
    bool ignores_case;
    struct err *err;
};

static int refuse(struct pattern_parser *p, const char *what)
{
    return err_set(p->err, ERR_DATA, "pattern '%s': %s at byte %zu", p->text, what, p->at);
}

static int unsupported(struct pattern_parser *p)
{
    return refuse(p, "an unsupported construct");
}

/* ---- instructions ---- */

/* Make room at place; what pointed behind it, and what is in the moved part and points at it, moves
 * on. */
static int insert(struct pattern_parser *p, int place, struct pattern_instruction instruction)
{
    struct pattern_program *program = p->program;
    struct pattern_instruction *items = program->items;

    if (program->n == PATTERN_INSTRUCTIONS_MAX)
        return refuse(p, "it is too long");
    memmove(&items[place + 1], &items[place], (size_t)(program->n - place) * sizeof *items);
    program->n++;
    for (int i = 0; i < program->n; i++) {
        int least = i < place ? place + 1 : place;

        if (i == place)
            continue;
        items[i].x += items[i].x >= least;
        items[i].y += items[i].y >= least;
    }
    items[place] = instruction;
    return 0;
}

static int append(struct pattern_parser *p, struct pattern_instruction instruction)
{
    if (p->program->n == PATTERN_INSTRUCTIONS_MAX)
        return refuse(p, "it is too long");
    p->program->items[p->program->n++] = instruction;
    return 0;
}

static struct pattern_set *new_set(struct pattern_parser *p)
{
    if (p->program->n_sets == PATTERN_SETS_MAX) {
        refuse(p, "it has too many classes");
        return NULL;
    }
    struct pattern_set *set = &p->program->sets[p->program->n_sets++];
    memset(set, 0, sizeof *set);
    return set;
}

static int add_atom(struct pattern_parser *p, const struct pattern_set *set)
{
    p->atom = p->program->n;
    return append(
        p, (struct pattern_instruction){ PATTERN_SET, (int)(set - p->program->sets), -1, -1, 0 });
}

/* ---- sets ---- */

static int add_range(struct pattern_parser *p, struct pattern_set *set, uint32_t first,
                     uint32_t last)
{
    if (first > last)
        return refuse(p, "a range whose end is before its start");
    if (set->n_ranges == PATTERN_RANGES_MAX)
        return refuse(p, "a class with too many ranges");
    set->ranges[set->n_ranges][0] = first;
    set->ranges[set->n_ranges++][1] = last;
    return 0;
}

/* Without case only ASCII is known, with the two letters beyond it that fold to ASCII. */
static int add_code(struct pattern_parser *p, struct pattern_set *set, uint32_t code)
{
    uint32_t lower = code | 0x20;
    bool is_letter = lower >= 'a' && lower <= 'z' && code < 0x80;

    if (p->ignores_case && code >= 0x80)
        return refuse(p, "a non-ASCII character with ignored case");
    if (add_range(p, set, code, code) < 0)
        return -1;
    if (!p->ignores_case || !is_letter)
        return 0;
    if (add_range(p, set, code ^ 0x20, code ^ 0x20) < 0)
        return -1;
    if (lower == 's' || lower == 'k')
        return add_range(p, set, lower == 's' ? 0x17f : 0x212a, lower == 's' ? 0x17f : 0x212a);
    return 0;
}

#define BIT(category) (1u << (category))
#define SPACES (BIT(UNICODE_ZS) | BIT(UNICODE_ZL) | BIT(UNICODE_ZP))

/* \s */
static int add_spaces(struct pattern_parser *p, struct pattern_set *set)
{
    set->categories |= SPACES;
    return add_range(p, set, 9, 13) < 0 || add_range(p, set, 0x85, 0x85) < 0 ? -1 : 0;
}

/* The categories of "Lu" or "L", 0 if there is no such. */
static uint32_t category_bits(const char *name, size_t n)
{
    static const char names[] = "CnLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCoCs";
    uint32_t bits = 0;

    for (int i = 0; i < UNICODE_N_CATEGORIES && (n == 1 || n == 2); i++)
        if (memcmp(names + 2 * i, name, n) == 0)
            bits |= BIT(i);
    return bits;
}

/* Behind \p or \P: {Lu}. */
static int parse_property(struct pattern_parser *p, struct pattern_set *set, bool negated)
{
    const char *name = p->text + p->at + 1, *end;

    if (p->text[p->at] != '{' || !(end = strchr(name, '}')))
        return unsupported(p);
    if (*name == '^') {
        negated = !negated;
        name++;
    }
    uint32_t bits = category_bits(name, (size_t)(end - name));
    if (bits == 0 || (p->ignores_case && bits & (BIT(UNICODE_LU) | BIT(UNICODE_LL))) ||
        (p->ignores_case && bits & BIT(UNICODE_LT)))
        return unsupported(p);
    set->categories |= negated ? ~bits & (BIT(UNICODE_N_CATEGORIES) - 1) : bits;
    p->at = (size_t)(end - p->text) + 1;
    return 0;
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Behind \x or \u: {1F600}, two digits or four. */
static int parse_hex(struct pattern_parser *p, int n_digits, uint32_t *code)
{
    int braces = n_digits == 2 && p->text[p->at] == '{', n = 0;

    p->at += (size_t)braces;
    for (*code = 0; n < (braces ? 6 : n_digits) && hex_value(p->text[p->at]) >= 0; n++)
        *code = *code * 16 + (uint32_t)hex_value(p->text[p->at++]);
    if (n == 0 || (!braces && n != n_digits) || *code >= UNICODE_CODES)
        return unsupported(p);
    if (braces && p->text[p->at++] != '}')
        return unsupported(p);
    return !braces && n_digits == 2 && *code >= 0x80 ? unsupported(p) : 0;
}

/*
 * What follows a backslash: one code point (0), or a class that was added to set (1), or an error
 * (-1). A negated class adds what \p can say; \S is said by the whole set's negation where it
 * stands alone.
 */
static int parse_escape(struct pattern_parser *p, struct pattern_set *set, uint32_t *code)
{
    char c = p->text[p->at];

    if (c == 0)
        return unsupported(p);
    p->at++;
    switch (c) {
    case 'p':
    case 'P':
        return parse_property(p, set, c == 'P') < 0 ? -1 : 1;
    case 's':
        return add_spaces(p, set) < 0 ? -1 : 1;
    case 'd':
        set->categories |= BIT(UNICODE_ND);
        return 1;
    case 'D':
        set->categories |= ~BIT(UNICODE_ND) & (BIT(UNICODE_N_CATEGORIES) - 1);
        return 1;
    case 'S': /* all but spaces: by category, then the control characters between */
        set->categories |= ~(SPACES | BIT(UNICODE_CC)) & (BIT(UNICODE_N_CATEGORIES) - 1);
        return add_range(p, set, 0, 8) < 0 || add_range(p, set, 14, 31) < 0 ||
                       add_range(p, set, 0x7f, 0x84) < 0 || add_range(p, set, 0x86, 0x9f) < 0
                   ? -1
                   : 1;
    case 'x':
        return parse_hex(p, 2, code);
    case 'u':
        return parse_hex(p, 4, code);
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'v':
        *code = c == 'n' ? '\n' : c == 'r' ? '\r' : c == 't' ? '\t' : c == 'f' ? '\f' : '\v';
        return 0;
    default:
        *code = (unsigned char)c;
        return *code > ' ' && *code < 0x7f && !strchr("_0123456789", c) &&
                       !((*code | 0x20) >= 'a' && (*code | 0x20) <= 'z')
                   ? 0
                   : unsupported(p);
    }
}

static uint32_t next_code(struct pattern_parser *p)
{
    size_t n_bytes;
    uint32_t code = unicode_decode((const unsigned char *)p->text + p->at, &n_bytes);

    p->at += n_bytes;
    return code;
}

/* The last code point of a range whose "-" was read. */
static int parse_range_end(struct pattern_parser *p, struct pattern_set *set, uint32_t first)
{
    uint32_t last = 0;

    if (p->text[p->at] == '[' || p->ignores_case)
        return unsupported(p);
    if (p->text[p->at] == '\\') {
        p->at++;
        if (parse_escape(p, set, &last) != 0)
            return p->err->code ? -1 : unsupported(p);
    } else {
        last = next_code(p);
    }
    return add_range(p, set, first, last);
}

/* Behind "[": up to its "]". Nested classes are united with it. */
static int parse_class(struct pattern_parser *p, struct pattern_set *set)
{
    int depth = 1;
    bool is_first = true;

    if (p->text[p->at] == '^') {
        set->negated = true;
        p->at++;
    }
    while (depth > 0) {
        const char *text = p->text + p->at;
        uint32_t code;
        int is_class = 0;

        if (*text == 0 || (is_first && *text == ']') || strncmp(text, "&&", 2) == 0 ||
            strncmp(text, "[^", 2) == 0 || strncmp(text, "[:", 2) == 0)
            return unsupported(p);
        is_first = *text == '[';
        if (*text == '[' || *text == ']') {
            depth += *text == '[' ? 1 : -1;
            p->at++;
            continue;
        }
        if (*text == '\\') {
            p->at++;
            is_class = parse_escape(p, set, &code);
        } else {
            code = next_code(p);
        }
        if (is_class < 0)
            return -1;
        bool is_range = p->text[p->at] == '-' && p->text[p->at + 1] != ']';
        if (is_class && is_range)
            return unsupported(p);
        p->at += (size_t)is_range;
        if (is_class)
            continue;
        if ((is_range ? parse_range_end(p, set, code) : add_code(p, set, code)) < 0)
            return -1;
    }
    return 0;
}

/* One character or class. */
static int parse_set(struct pattern_parser *p, struct pattern_set *set)
{
    char c = p->text[p->at];
    uint32_t code;

    if (c == '.') {
        p->at++;
        set->negated = true;
        return add_range(p, set, '\n', '\n');
    }
    if (c == '[') {
        p->at++;
        return parse_class(p, set);
    }
    if (c == '\\') {
        p->at++;
        int is_class = parse_escape(p, set, &code);
        return is_class != 0 ? (is_class < 0 ? -1 : 0) : add_code(p, set, code);
    }
    return add_code(p, set, next_code(p));
}

/* ---- operators ---- */

/* {m,n}, {m} or {m,} at p->at; greatest is -1 where there is none. */
static int parse_counts(struct pattern_parser *p, int *least, int *greatest)
{
    int counts[2] = { 0, -1 }, n = 0;

    for (p->at++; n < 2; n++) {
        int value = -1;

        while (p->text[p->at] >= '0' && p->text[p->at] <= '9') {
            value = (value < 0 ? 0 : value) * 10 + (p->text[p->at++] - '0');
            if (value > COUNT_MAX)
                return refuse(p, "a count above 64");
        }
        counts[n] = value;
        if (n == 0 && p->text[p->at] == '}')
            counts[++n] = value;
        else if (n == 0 && p->text[p->at] == ',')
            p->at++;
    }
    if (p->text[p->at] != '}' || counts[0] < 0 || (counts[1] >= 0 && counts[1] < counts[0]) ||
        counts[1] == 0)
        return unsupported(p);
    p->at++;
    *least = counts[0];
    *greatest = counts[1];
    return 0;
}

/* The atom, of one set, least times, and then up to greatest. */
static int repeat_counted(struct pattern_parser *p, int least, int greatest)
{
    struct pattern_instruction *items = p->program->items, atom = items[p->atom];

    if (p->atom != p->program->n - 1 || atom.op != PATTERN_SET)
        return refuse(p, "a count behind more than one character");
    p->program->n--;
    for (int i = 0; i < least; i++)
        if (append(p, atom) < 0)
            return -1;
    int n = p->program->n;
    if (greatest < 0) {
        if (append(p, (struct pattern_instruction){ PATTERN_SPLIT, -1, n + 1, n + 3, 0 }) < 0 ||
            append(p, atom) < 0)
            return -1;
        return append(p, (struct pattern_instruction){ PATTERN_JUMP, -1, n, -1, 0 });
    }
    int end = n + 2 * (greatest - least);
    for (int i = least; i < greatest; i++, n += 2)
        if (append(p, (struct pattern_instruction){ PATTERN_SPLIT, -1, n + 1, end, 0 }) < 0 ||
            append(p, atom) < 0)
            return -1;
    return 0;
}

static int repeat(struct pattern_parser *p, char c)
{
    int least = 0, greatest = 0, atom = p->atom, n = p->program->n, rc;

    if (atom < 0)
        return unsupported(p);
    if (c == '{') {
        rc = parse_counts(p, &least, &greatest) < 0 ? -1 : repeat_counted(p, least, greatest);
    } else {
        p->at++;
        if (c == '+') {
            rc = append(p, (struct pattern_instruction){ PATTERN_SPLIT, -1, atom, n + 1, 0 });
        } else {
            int end = n + 1 + (c == '*');

            rc = insert(p, atom,
                        (struct pattern_instruction){ PATTERN_SPLIT, -1, atom + 1, end, 0 });
            if (rc == 0 && c == '*')
                rc = append(p, (struct pattern_instruction){ PATTERN_JUMP, -1, atom, -1, 0 });
        }
    }
    p->atom = -1;
    if (rc == 0 && p->text[p->at] && strchr("?+*{", p->text[p->at]))
        return unsupported(p); /* lazy, possessive, repeated again */
    return rc;
}

/* A jump to the end of the group of this depth, while that is not known. */
#define GROUP_END(depth) (-2 - (depth))

static int alternate(struct pattern_parser *p)
{
    struct pattern_group *group = &p->groups[p->depth];
    int n = p->program->n;

    p->at++;
    if (insert(p, group->alternative,
               (struct pattern_instruction){ PATTERN_SPLIT, -1, group->alternative + 1, n + 2,
                                             0 }) < 0)
        return -1;
    if (append(p, (struct pattern_instruction){ PATTERN_JUMP, -1, GROUP_END(p->depth), -1, 0 }) < 0)
        return -1;
    group->alternative = n + 2;
    p->atom = -1;
    return 0;
}

static void finish_group(struct pattern_parser *p)
{
    for (int i = 0; i < p->program->n; i++)
        if (p->program->items[i].x == GROUP_END(p->depth))
            p->program->items[i].x = p->program->n;
}

static int look(struct pattern_parser *p, bool negated)
{
    struct pattern_set *set = new_set(p);
    bool ignores_case = p->ignores_case;

    if (!set)
        return -1;
    p->at += 3;
    if (p->text[p->at] == 0 || strchr("()|?*+{$^", p->text[p->at]))
        return unsupported(p);
    p->ignores_case = false;
    if (parse_set(p, set) < 0)
        return -1;
    p->ignores_case = ignores_case;
    if (p->text[p->at] != ')')
        return unsupported(p);
    p->at++;
    set->negated ^= negated;
    p->atom = -1;
    return append(p, (struct pattern_instruction){ PATTERN_LOOK, (int)(set - p->program->sets), -1,
                                                   -1, negated });
}

static int open_group(struct pattern_parser *p)
{
    const char *text = p->text + p->at;
    int outside = p->ignores_case;

    if (strncmp(text, "(?!", 3) == 0 || strncmp(text, "(?=", 3) == 0)
        return look(p, text[2] == '!');
    if (strncmp(text, "(?:", 3) == 0) {
        p->at += 3;
    } else if (strncmp(text, "(?i:", 4) == 0) {
        p->at += 4;
        p->ignores_case = true;
    } else if (text[1] == '?' || text[1] == '*') {
        return unsupported(p);
    } else {
        p->at++;
    }
    if (p->depth + 1 == DEPTH_MAX)
        return refuse(p, "groups are nested too deeply");
    p->groups[++p->depth] = (struct pattern_group){ p->program->n, p->program->n, outside };
    p->atom = -1;
    return 0;
}

static int close_group(struct pattern_parser *p)
{
    if (p->depth == 0)
        return refuse(p, "a ) without its (");
    p->at++;
    finish_group(p);
    p->ignores_case = p->groups[p->depth].ignores_case;
    p->atom = p->groups[p->depth--].start;
    return 0;
}

/* Before a line's end, as Oniguruma has it. */
static int line_end(struct pattern_parser *p)
{
    struct pattern_set *set = new_set(p);

    p->at++;
    if (!set || add_range(p, set, '\n', '\n') < 0)
        return -1;
    p->atom = -1;
    return append(
        p, (struct pattern_instruction){ PATTERN_LOOK, (int)(set - p->program->sets), -1, -1, 1 });
}

static int parse_next(struct pattern_parser *p)
{
    char c = p->text[p->at];

    switch (c) {
    case '(':
        return open_group(p);
    case ')':
        return close_group(p);
    case '|':
        return alternate(p);
    case '$':
        return line_end(p);
    case '?':
    case '*':
    case '+':
    case '{':
        return repeat(p, c);
    case '^':
        return unsupported(p);
    default:
        break;
    }
    struct pattern_set *set = new_set(p);
    return !set || parse_set(p, set) < 0 ? -1 : add_atom(p, set);
}

int pattern_parse(struct pattern_program *program, const char *text, struct err *err)
{
    struct pattern_parser p = {
        .program = program, .text = text, .n = strlen(text), .atom = -1, .err = err
    };

    program->n = program->n_sets = 0;
    while (p.at < p.n)
        if (parse_next(&p) < 0)
            return -1;
    if (p.depth > 0)
        return refuse(&p, "a ( without its )");
    finish_group(&p);
    return append(&p, (struct pattern_instruction){ PATTERN_MATCH, -1, -1, -1, 0 });
}
