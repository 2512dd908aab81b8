"""Ten grammars in EBNF, with texts of each and texts that are none of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grammar:
    """An EBNF text with examples."""

    source: str
    members: tuple[str, ...]
    others: tuple[str, ...]


GRAMMARS = {
    "sum": Grammar(
        'root ::= term (("+" | "-") term)*\nterm ::= factor (("*" | "/") factor)*\n'
        'factor ::= [0-9]{1,4} | "(" root ")"\n',
        ("1", "1+2*3", "(1-2)/(34)"),
        ("", "1+", "(1", "12345"),
    ),
    "brackets": Grammar('root ::= ("(" root ")" | "[" root "]")*\n', ("", "()", "([])[]"), ("(", "(]", "a")),
    "palindrome": Grammar(
        'root ::= "a" root "a" | "b" root "b" | "c"\n', ("c", "aca", "abcba"), ("", "ab", "acb", "cc")
    ),
    "as many": Grammar('root ::= "a" root "b" | ""\n', ("", "ab", "aaabbb"), ("a", "ba", "aab")),
    "list of words": Grammar(
        'root ::= word ("," " "? word){0,5}\nword ::= [a-z]+ | "\\"" [^"\\\\\\n]* "\\""\n',
        ("a", "ab, c", '"x y",z'),
        ("", "a,", "A", '"a'),
    ),
    "assignments": Grammar(
        '# one or more lines\nroot ::= line+\nline ::= name " = " value "\\n"\nname ::= [a-z_] [a-z0-9_]*\n'
        'value ::= number | "True" | "False" | list\nlist ::= "[" (value (", " value)*)? "]"\nnumber ::= "-"? [0-9]+\n',
        ("x = 1\n", "a_1 = [True, [-2]]\nb = False\n"),
        ("x = 1", "1 = x\n", "x = [1,2]\n"),
    ),
    "left recursion": Grammar(
        'root ::= root "," item | item\nitem ::= [0-9]\n', ("1", "1,2,3"), ("", "1,", ",1", "12")
    ),
    "escapes": Grammar(
        'root ::= "\\u00e4" [\\u0030-\\u0039]+ "\\x41" "\\t" [\\]\\-]? "\\\\"\n',
        ("ä1A\t]\\", "ä09A\t\\", "ä0A\t-\\"),
        ("a1A\t\\", "ä1A\t", "äA\t\\"),
    ),
    "letters of many bytes": Grammar(
        'root ::= ("日" | "本" | [ァ-ヶ]){2,6} "。"?\n', ("日本", "アイウ。", "日カ本"), ("日", "ab", "日本。。")
    ),
    "call": Grammar(
        'root ::= name "(" arguments? ")" ("." root)?\narguments ::= argument (", " argument)*\n'
        'argument ::= (name "=")? (name | [0-9]{1,6} | root)\nname ::= [a-z]{1,8}\n',
        ("f()", "f(a, b=1).g(h(2))"),
        ("f", "f(", "f(a,b)", "f()."),
    ),
}
