/*
 * table_test.c - columns line up
 */
#include "report_fixture.h"

#include "report/table.h"

static void check(const struct report_table *table, int indent, const char *wanted)
{
    struct str out = { 0 };

    str_add(&out, "> ");
    report_table_print(table, indent, &out);
    assert_string_equal(out.data + 2, wanted);
    str_release(&out);
}

static void heading_rows_and_total(void **state)
{
    struct report_table table;

    (void)state;
    report_table_init(&table, "lr");
    report_table_heading(&table, "memory\trank %d", 0);
    report_table_row(&table, "parameters\t%.1f GiB", 1.2);
    report_table_row(&table, "states\t12.4 GiB");
    report_table_total(&table, "total\t13.6 GiB");
    check(&table, 0,
          "memory        rank 0\n"
          "----------  --------\n"
          "parameters   1.2 GiB\n"
          "states      12.4 GiB\n"
          "----------  --------\n"
          "total       13.6 GiB\n");
    report_table_release(&table);
}

static void empty_cells_indent_and_no_trailing_blanks(void **state)
{
    struct report_table table;

    (void)state;
    report_table_init(&table, "rll");
    check(&table, 2, "");
    report_table_row(&table, "1\ta\tlong text");
    report_table_row(&table, "22\t\tx");
    report_table_row(&table, "333\tb");
    report_table_row(&table, "%s", "");
    check(&table, 2,
          "    1  a  long text\n"
          "   22     x\n"
          "  333  b\n"
          "\n");
    report_table_release(&table);
}

/* Two bytes, one column. */
static void widths_count_characters(void **state)
{
    struct report_table table;

    (void)state;
    report_table_init(&table, "lr");
    report_table_row(&table, "\xc3\xa9t\xc3\xa9\t1");
    report_table_row(&table, "abcd\t23");
    check(&table, 0,
          "\xc3\xa9t\xc3\xa9    1\n"
          "abcd  23\n");
    report_table_release(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heading_rows_and_total),
        cmocka_unit_test(empty_cells_indent_and_no_trailing_blanks),
        cmocka_unit_test(widths_count_characters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
