"""`hushsum plan init`: writes a plan file that is proposed from public bounds and a few answers."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hushsum_cli.output import ExactNumber, examples, print_json, print_pairs
from hushsum_cli.output import as_json as as_json_option

if TYPE_CHECKING:
    from hushsum.proposal import Proposal

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_QUESTIONS: Final = ("density", "outliers", "classes", "histogram", "regression")
_TRUSTED: Final = ("central", "secure", "silo", "report")
_EPSILON: Final = "1"
_RECORDS: Final = 100_000
_CLIENTS: Final = 100


@click.command(
    short_help="Propose a plan file from public bounds.",
    epilog=examples(
        "hushsum plan init data.csv",
        "hushsum plan init data.csv --bounds age=0:120 --bounds income=0:500000 --total-epsilon 3",
        "hushsum plan init --bounds x=0:10 --bounds y=0:10 --question histogram --total-epsilon 3 --records 1e5",
    ),
)
@click.argument("data", type=_FILE, required=False)
@click.option(
    "--bounds",
    "bounds",
    multiple=True,
    metavar="NAME=LOW:HIGH",
    help="Public lower and upper bound of a column; one option for each column.",
)
@click.option("--columns", metavar="NAME,…", help="Columns to use.  [default: all but those of labels and clients]")
@click.option(
    "--question", type=click.Choice(_QUESTIONS), help="Question that releases will answer.  [default: density]"
)
@click.option("--target", metavar="NAME", help="Column to predict, for question regression.  [default: the last]")
@click.option("--label-column", metavar="NAME", help="Column with the labels, for question classes.")
@click.option("--classes", metavar="LABEL,…", help="All labels that records may have, for question classes.")
@click.option("--epsilon", type=ExactNumber(), help=f"ε of one release.  [default: {_EPSILON}]")
@click.option("--total-epsilon", type=ExactNumber(), help="Limit on ε of all releases of this data together.")
@click.option("--delta", type=ExactNumber(zero=True), help="Delta.  [default: 0; 0.000001 if clients add the noise]")
@click.option(
    "--trust",
    type=click.Choice(_TRUSTED),
    help="Who adds the noise: one server or this machine (central), cohorts of clients (secure), "
    "each client (silo), each record (report).  [default: central]",
)
@click.option("--client-column", metavar="NAME", help="Column with the client ids; not part of the record.")
@click.option(
    "--records-per-client",
    type=click.IntRange(1),
    help="Protect all records of a client together, and count at most this many.  [default: protect single records]",
)
@click.option("--clients", type=click.IntRange(1), help="Expected number of clients per window, for --trust secure.")
@click.option("--records", type=ExactNumber(), help=f"Expected number of records.  [default: {_RECORDS}]")
@click.option("--public", is_flag=True, help="DATA is public, or a public sample: derive missing values from it.")
@click.option("--name", help="Name of the plan.  [default: that of DATA]")
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("plan.toml"), show_default=True
)
@click.option("--force", is_flag=True, help="Replace an existing plan file.")
@as_json_option
def init(  # noqa: PLR0913  one argument an option
    *,
    data: Path | None,
    bounds: tuple[str, ...],
    columns: str | None,
    question: str | None,
    target: str | None,
    label_column: str | None,
    classes: str | None,
    epsilon: Fraction | None,
    total_epsilon: Fraction | None,
    delta: Fraction | None,
    trust: str | None,
    client_column: str | None,
    records_per_client: int | None,
    clients: int | None,
    records: Fraction | None,
    public: bool,
    name: str | None,
    out: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Propose a plan file: family, kernel, bandwidth, rows and buckets, with comments; print its expected error.

    On a terminal, asks for values that are not given as options, unless --total-epsilon and the --bounds of all columns
    are given. Of DATA, a CSV or Parquet file, only the column names are read, unless --public says that its values are
    public: bounds taken from private data would reveal single values of it.
    """
    from hushsum.proposal import propose

    if out.exists() and not force:
        raise click.ClickException(f"{out} already exists: use --force to overwrite it, or -o for another file")
    answers = _Answers(data, dict(map(_bound, bounds)), _listed(columns), asks=sys.stdin.isatty() and not as_json)
    answers.others = [column for column in (label_column, client_column) if column is not None]
    answers.public = public
    answers.classes = _listed(classes)
    answers.ask_nothing_if_all_is_given(total_epsilon, question)
    answers.read_names()
    question = answers.ask("Question", question, default="density", kind=click.Choice(_QUESTIONS))
    if question == "classes" and data is not None:
        label_column = answers.ask("Column with the labels", label_column)
    records_per_client = answers.ask(
        "Maximum number of records of a client, to protect them all together (0: protect single records)",
        records_per_client,
        default=0,
        kind=click.IntRange(0),
    )
    if records_per_client and data is not None:
        client_column = answers.ask("Column of client ids", client_column)
    answers.others = [column for column in (label_column, client_column) if column is not None]
    if public:
        answers.take_public(label_column, counts=records is None)
    answers.complete()
    if question == "classes" and not answers.classes:
        answers.classes = _listed(answers.ask("All labels, separated by commas", None))
    asked: dict[str, Any] = {
        "epsilon": answers.ask("ε of one release", epsilon, default=_EPSILON, kind=ExactNumber()),
        "total_epsilon": answers.ask("ε of all releases of this data together", total_epsilon, kind=ExactNumber()),
        "trust": answers.ask("Who adds the noise", trust, default="central", kind=click.Choice(_TRUSTED)),
    }
    if asked["trust"] == "secure":
        clients = answers.ask("Clients expected in a window", clients, default=_CLIENTS, kind=click.IntRange(1))
    if asked["total_epsilon"] is None:
        raise click.UsageError("--total-epsilon is missing: the limit on ε of all releases of this data, such as 3")
    expected = answers.ask("Records expected", records or answers.records, default=_RECORDS, kind=ExactNumber())
    try:
        proposal = propose(
            answers.bounds,
            **asked,
            question=question,
            delta=delta,
            records=round(expected),
            records_per_client=records_per_client or None,
            clients=clients,
            classes=answers.classes,
            target=target,
            name=name or ("data" if data is None else data.stem),
        )
        plan = proposal.plan
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with out.open("w" if force else "x", encoding="utf-8") as file:
        file.write(proposal.to_toml(*_comments(answers, proposal)))
    std_error = _expected_error(proposal)
    options = _options(answers, out, label_column, client_column) if plan.privacy.mode == "central" else None
    if as_json:
        numbers = {"records": proposal.records, "density": proposal.density, "std_error": std_error}
        about = {"file": str(out), "id": plan.hex_id, "read": answers.read, "question": proposal.question}
        print_json({**about, "sketch": plan.to_fields()["sketch"], "expected": numbers})
        return
    pairs = [
        ("read", answers.read),
        *(
            (key, value)
            for key, value in plan.summary()
            if key in {"columns", "classes", "sketch", "guarantee", "budget"}
        ),
        ("error", _error_text(proposal, std_error)),
        ("name", f"{plan.name}: it becomes public with the plan and its releases; --name changes it"),
        ("file", f"written to {out}: read its comments, and correct values if you have better ones"),
        ("accuracy", f"hushsum plan advise {out}"),
        ("next", f"hushsum release make {options}" if options else f"hushsum plan make {out}"),
        ("or", f"hushsum plan make {out}, for a service that collects from devices" if options else ""),
    ]
    print_pairs([(key, value) for key, value in pairs if value], title=f"plan {plan.name}")


@dataclass
class _Answers:
    """What is known of the columns, and where it is from."""

    data: Path | None
    bounds: dict[str, Any]
    columns: list[str]
    asks: bool
    others: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    records: int | None = None
    public: bool = False
    taken: list[str] = field(default_factory=list)
    names: tuple[str, ...] | None = None

    @property
    def read(self) -> str:
        """What was read of the file."""
        if self.data is None:
            return "no file"
        if self.taken:
            return f"the values of {self.data.name}, which --public declares public: {', '.join(self.taken)}"
        return f"the header of {self.data.name} only, no value: {', '.join(self.names or ())}"

    def ask_nothing_if_all_is_given(self, total_epsilon: Any, question: str | None) -> None:
        """Takes defaults for what is missing if the total is given, and bounds, or another use, of every column.

        Raises:
            RecordError: The names of the file's columns cannot be read, or look like values.
        """
        from hushsum.tables import column_names

        lacks_labels = question == "classes" and not self.classes
        if self.asks and self.bounds and total_epsilon is not None and not lacks_labels:
            given = {*self.columns, *self.others, *self.bounds}
            names = self.columns if self.data is None else column_names(self.data, given=given)
            self.asks = not {*self.others, *self.bounds}.issuperset(names)

    def read_names(self) -> None:
        """Reads the names of the file's columns, and has them confirmed on a terminal.

        Raises:
            RecordError: They cannot be read, or look like values.
            click.ClickException: They are values.
        """
        from hushsum.tables import column_names

        if self.data is None:
            return
        self.names = column_names(self.data, given={*self.columns, *self.others, *self.bounds})
        if self.asks and not self.public:
            click.echo(f"Columns of {self.data.name}: {', '.join(self.names)}")
            if not click.confirm("Are these names of columns, and no values?", default=False):
                raise click.ClickException(f"{self.data}: add a first line with the names of the columns")

    def wanted(self) -> list[str]:
        """The columns of a record, in their order.

        Raises:
            RecordError: The file has no column of a name that was given. Its names are shown only if they are known not
                to be values: they are public, or were confirmed, or one of them was given.
        """
        from hushsum.errors import RecordError

        if self.names is not None:
            given = (*self.columns, *self.others, *self.bounds)
            known = self.public or self.asks or not {*given}.isdisjoint(self.names)
            for column in (*self.columns, *self.others):
                if column not in self.names:
                    has = ", ".join(self.names) if known else f"{len(self.names)} columns of other names"
                    raise RecordError(f"{self.data}: no column {column!r}; it has {has}")
            if not known:
                raise RecordError(
                    f"{self.data}: has {len(self.names)} columns, of which none was named; "
                    "give each its bounds (--bounds NAME=LOW:HIGH, --columns NAME,...)"
                )
        found = self.columns or list(self.names or ()) or list(self.bounds)
        return [column for column in found if column not in self.others]

    def complete(self) -> None:
        """Asks for the bounds that are missing, and puts all in the order of the columns.

        Raises:
            RecordError: Some are missing where nobody can be asked, or they are of no column.
        """
        from hushsum.errors import RecordError
        from hushsum.proposal import bounds_of

        wanted = self.wanted()
        if self.asks and not wanted:
            wanted = self.columns = _listed(click.prompt("Columns, separated by commas"))
        if self.asks:
            for column in wanted:
                if column not in self.bounds and (pair := _asked_bounds(column)) is not None:
                    self.bounds[column] = pair
            wanted = [column for column in wanted if column in self.bounds]
        try:
            given = bounds_of(wanted, self.bounds)
        except RecordError as error:
            raise RecordError(f"{error} (--bounds NAME=LOW:HIGH, --columns NAME,...)") from error
        self.bounds = {column: given[column] for column in wanted}  # type: ignore[call-overload]  # a mapping, as given

    def ask(self, what: str, given: Any, *, default: Any = None, kind: Any = None) -> Any:
        """What was given, else what is answered on a terminal, else the default."""
        if given is not None or not self.asks:
            return default if given is None else given
        return click.prompt(what, default=default, type=kind)

    def take_public(self, label_column: str | None, *, counts: bool) -> None:
        """Takes what is not given from the values of a file that is public: bounds, labels, the number of records.

        Raises:
            RecordError: The file cannot be read, or a column has no two numbers.
        """
        import numpy as np

        from hushsum.collection import label_list
        from hushsum.errors import RecordError
        from hushsum.tables import read_file

        if self.data is None:
            raise click.UsageError("--public needs DATA, the file to read")
        wanted = self.wanted()
        missing = [column for column in wanted if column not in self.bounds]
        labelled = label_column is not None and not self.classes
        if not (missing or counts or labelled):
            return
        table = read_file(self.data, names=self.names or (), texts=self.others)
        values = table.numbers(wanted)
        for column in missing:
            finite = values[:, wanted.index(column)]
            finite = finite[np.isfinite(finite)]
            if not len(finite) or finite.min() == finite.max():
                raise RecordError(f"{self.data}: column {column!r} has fewer than two values; give its --bounds")
            self.bounds[column] = (float(finite.min()), float(finite.max()))
        if missing:
            self.taken.append(f"bounds of {', '.join(missing)}")
        if counts:
            self.records = max(1, len(values))
            self.taken.append("the number of records")
        if label_column is not None and labelled:
            labels = {label for label in label_list(table.values(label_column)) if isinstance(label, str) and label}
            self.classes = sorted(labels)
            self.taken.append("the labels")


def _asked_bounds(column: str) -> tuple[str, str] | None:
    """What is typed; None to leave the column out. What cannot be read is asked for again."""

    def pair(text: str) -> tuple[str, str] | None:
        return _bound(f"{column}={text}")[1] if text.strip() else None

    what = f"Public bounds of {column}, as LOW:HIGH (empty: leave it out)"
    answered: tuple[str, str] | None = click.prompt(what, default="", show_default=False, value_proc=pair)
    return answered


def _bound(text: str) -> tuple[str, tuple[str, str]]:
    name, equals, ends = text.rpartition("=")
    low, colon, high = ends.partition(":")
    if not (equals and colon and name.strip() and low.strip() and high.strip()):
        raise click.BadParameter(f"{text!r}, expected NAME=LOW:HIGH, such as age=0:120", param_hint="--bounds")
    return name.strip(), (low.strip(), high.strip())


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _comments(answers: _Answers, proposal: "Proposal") -> Iterator[str]:
    """Lines for the top of the file, without anything that depends on values, unless these are public."""
    import json

    from hushsum.proposal import QUESTIONS

    yield "A plan proposed by `hushsum plan init`. Correct values if you have better ones, then: hushsum plan make"
    yield f"For the question {proposal.question!r}: {QUESTIONS[proposal.question]}."
    yield f"About {proposal.records:,} records are expected{' of each class' if answers.classes else ''}."
    if answers.data is None:
        yield "No file was read."
    elif answers.taken:
        yield "Taken from the values of the file, which was declared public:"
        yield f"{json.dumps(', '.join(answers.taken))}. If it is private, this plan must not be used."
    else:
        yield "Of the file the names of the columns were read, and no value."


def _expected_error(proposal: "Proposal") -> float | None:
    """One standard error, in records; None where made-up records have no such density."""
    from hushsum.advice import advise_range

    try:
        found = advise_range(proposal.plan, records=[proposal.records], densities=[proposal.density])
    except ValueError:
        return None
    return found.errors[0][0]


def _error_text(proposal: "Proposal", error: float | None) -> str:
    from hushsum.advice import shown

    if error is None:
        return ""
    answer = proposal.records * proposal.density
    of = " of one class" if proposal.plan.classes else ""
    return (
        f"about ±{shown(error)} on an answer of {shown(answer)} records ({100 * error / answer:.2g} %), "
        f"of {proposal.records:,} records{of}: one standard error"
    )


def _options(answers: _Answers, plan: Path, label_column: str | None, client_column: str | None) -> str:
    from shlex import join

    more = [] if label_column is None else ["--label-column", label_column]
    more += [] if client_column is None else ["--client-column", client_column]
    if answers.names is not None and {*answers.names} != {*answers.bounds, *answers.others}:
        more += ["--columns", ",".join(answers.bounds)]
    file = "DATA" if answers.data is None else str(answers.data)
    return join([file, "--plan", str(plan), "--ledger", "ledger.db", "-o", "today.hush", *more])
