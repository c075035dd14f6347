/*
 * golden_text.h - text that must equal a file of the repository
 */
#ifndef SUPPORT_GOLDEN_TEXT_H
#define SUPPORT_GOLDEN_TEXT_H

/*
 * Fail the test at the first line where text differs from the file at path. With
 * LMTRAIN_UPDATE_GOLDEN=1 in the environment the file is written instead: then read it with care.
 */
void golden_text_check(const char *path, const char *text);

#endif
