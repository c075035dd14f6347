#!/usr/bin/env python3
"""The table of test/eval/answer_test.c: pairs of mathematical answers, and whether lm-evaluation-harness 0.4.13
(tasks/agieval/utils.py, is_equiv) takes them for the same. Prints C; needs the package lm-eval."""
import contextlib
import io

from lm_eval.tasks.agieval import utils

PAIRS = [
    ('$\\frac12$', '\\boxed{\\frac{1}{2}}'),
    ('The answer is 0.5', '$1/2$'),
    ('x = 3.', '3'),
    ('k=\\sqrt3', '\\boxed{\\sqrt{3}}'),
    ('5 \\text{ cm}', '$5$'),
    ('12%', '$12\\%$'),
    ('The answer is $.5$', '$0.5$'),
    ('\\boxed{a=b=7}', '7'),
    ('\\fbox{3} \\boxed{', '3'),
    ('\\boxed 3', '3'),
    ('nothing', 'nothing'),
    ('nothing', '3'),
    ('$\\sqrt$', '$\\sqrt$'),
    ('$\\frac$', '$\\frac$'),
    ('$\\frac1$', '$\\frac1$'),
    ('$\\dfrac{1}{2}$', '$\\tfrac12$'),
    ('$90^\\circ$', '90'),
    ('$\\left(1,2\\right)$', '$(1,2)$'),
    ('x=1/2', '$\\frac{1}{2}$'),
    ('x=01/2', '$\\frac{01}{2}$'),
    ('x=-1/2', '$\\frac{-1}{2}$'),
    ('$10\\text{ m}\\text{ s}$', '$10$'),
    ('y = 3 \\n so', '3'),
    ('the value 3.14, or 42', '42'),
    ('3a', '3'),
    ('$12$ and $13$', '$12$ and $13$'),
    ('$5$\nthen $6$', '6'),
    ('costs $5', '5'),
    ('$5', '$5'),
    ('$y=\\frac{3}4$', '$\\frac{3}{4}$'),
    ('$\\frac1{72}$', '$\\frac{1}{72}$'),
    ('1,000', '1000'),
    ('abc=7', '7'),
    ('$ab=7$', '$7$'),
    ('$xyz=7$', '$7$'),
    ('$αβ=7$', '$7$'),
    ('\\boxed{x = 5}', '5'),
    ('\\boxed{{1}}{2}', '{1}'),
    ('$1.50$', '$1.5$'),
    ('', '3'),
    ('', ''),
    ('$\\sqrtπ$', '$\\sqrt{π}$'),
    ('10 \\%', '10'),
]


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


for first, second in PAIRS:
    with contextlib.redirect_stdout(io.StringIO()):
        equal = int(bool(utils.is_equiv(first, second)))
    print(f"        {{ {quoted(first)}, {quoted(second)}, {equal} }},")
