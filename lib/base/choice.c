/*
 * choice.c - looking up names
 */
#include "base/choice.h"

#include <stddef.h>
#include <string.h>

#include "base/err.h"

const char *choice_word(const struct choice *choices, int value)
{
    const char *word = NULL;

    for (; choices->word; choices++)
        if (choices->value == value)
            word = choices->word;
    CHECK(word);
    return word;
}

const struct choice *choice_find(const struct choice *choices, const char *word)
{
    for (; choices->word; choices++)
        if (!strcmp(choices->word, word))
            return choices;
    return NULL;
}

const char *const *choice_words(const struct choice *choices, struct arena *arena)
{
    int n = 0;

    while (choices[n].word)
        n++;
    const char **words = arena_array(arena, const char *, n + 1);
    for (int i = 0; i < n; i++)
        words[i] = choices[i].word;
    words[n] = NULL;
    return words;
}
