"""Every key of a plan, with what it means and what it changes: what a plan may contain, and the text of its reference.

Types, ranges and most defaults are not here: the readers of the keys have them, and ``build_tools/docs_site`` asks
them.
Which keys a family, a kind of record or a mode uses is for those to say.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Key(NamedTuple):
    """One key of a plan.

    Attributes:
        meaning: What it says, in one or two sentences.
        unit: What its value is measured in; empty for names, lists and tables.
        privacy: What it changes in what is guaranteed or revealed; empty: nothing.
        accuracy: What it changes in the error of answers; empty: nothing.
        size: What it changes in the bytes of deltas, releases and the memory of the service; empty: nothing.
        default: Its default, where the compiled plan does not write it.
        values: Its type and range, where they depend on other keys.
    """

    meaning: str
    unit: str = ""
    privacy: str = ""
    accuracy: str = ""
    size: str = ""
    default: str = ""
    values: str = ""


#: Of a table: its keys say it.
TABLE: Final = "see its keys"
_PUBLIC_BOUNDS: Final = (
    "It is public: take it from public knowledge, never from the least and largest values of the data."
)
_HASHES_ARE_PUBLIC: Final = "No change: the guarantee does not depend on which hash functions are drawn."

#: By the full name of a table (of a list of tables without its index): its keys.
KEYS: Final[Mapping[str, Mapping[str, Key]]] = {
    "": {
        "name": Key(
            "What people call the plan. It is shown in lists, logs and releases.",
            unit="1 to 128 characters",
            privacy="No change, but it is public: it must not name a person.",
        ),
        "record": Key("What a record is.", privacy=TABLE, accuracy=TABLE, size=TABLE),
        "sketch": Key("How records are sketched.", privacy=TABLE, accuracy=TABLE, size=TABLE),
        "privacy": Key("The privacy guarantee, and who adds the noise.", privacy=TABLE, accuracy=TABLE, size=TABLE),
        "window": Key(
            "When windows begin and end.",
            privacy=TABLE,
            accuracy=TABLE,
            size=TABLE,
            default="every key at its default",
        ),
    },
    "record": {
        "kind": Key("Whether a record is a vector of numbers or a set of ids.", size="A plan of sets has no columns."),
        "dim": Key(
            "Number of columns, d. Only vectors have it.",
            unit="columns",
            accuracy="More columns make records more distant from each other: use a larger bandwidth.",
            size="`hermite` has order^d counters in each cell, `partition` the product of the cells of all columns; "
            "the size of the other families does not depend on d.",
        ),
        "lower": Key(
            "Smallest value of each column. Records below it are clipped.",
            unit="that of the column",
            privacy=_PUBLIC_BOUNDS,
            accuracy="Clipped records count at the bound. Wide bounds cost `hermite` and `partition` more noise in "
            "total, because they have more cells.",
            size="Wider bounds mean more cells of `hermite` and `partition`.",
            values="a list of `dim` numbers, at most 2^64 in size",
        ),
        "upper": Key(
            "Largest value of each column, above `lower`. Records above it are clipped.",
            unit="that of the column",
            privacy=_PUBLIC_BOUNDS,
            accuracy="As `lower`.",
            size="As `lower`.",
            values="a list of `dim` numbers, at most 2^64 in size, each above that of `lower`",
        ),
        "universe": Key(
            "Ids of sets are below this number. Only sets have it.",
            unit="ids",
            accuracy="Strings become ids modulo this number; in a small universe different strings get the same id.",
        ),
        "classes": Key(
            "Labels of records. Each class has a sketch of its own; without classes records have no labels.",
            privacy="The labels are public. ε does not change: a record is in one class only.",
            accuracy="The noise of a class is that of a plan without classes, and its records are fewer.",
            size="The counters of one class, times the number of classes.",
            values="a list of 0 or 2 to 1024 different strings",
        ),
        "names": Key(
            "Names of the columns. With them, columns of tables are found by name and not by position.",
            privacy="The names are public.",
            values="a list of 0 or `dim` different strings",
        ),
        "units": Key(
            "Units of the columns, for people.", privacy="The units are public.", values="a list of 0 or `dim` strings"
        ),
    },
    "sketch": {
        "family": Key(
            "How a record becomes counters, and so what can be asked.",
            privacy="It determines the sensitivity, from which the noise is calibrated to the same ε.",
            accuracy="[The families](../families.md) compares them.",
            size="It determines the shape of the counters.",
        ),
        "kernel": Key(
            "How similarity falls with distance. [Kernels](kernels.md) has formulas and pictures.",
            accuracy="A kernel that decays fast tells near records from many distant ones.",
        ),
        "bandwidth": Key(
            "Distance at which two records are alike: the scale of the kernel. Of `partition` it is the side of a "
            "cell.",
            unit="that of the records, after `transforms`",
            privacy="No change, if it is chosen without looking at the data. A bandwidth that was tried out on private "
            "records is an output without noise.",
            accuracy="A larger bandwidth averages over more records: less noise relative to the answer, less detail.",
            size="A smaller bandwidth means more cells of `hermite` and `partition`.",
        ),
        "power": Key(
            "Number of hashes concatenated in a row: the kernel is taken to this power. Of `paired`: signs in a row, "
            "at least 2.",
            unit="hashes",
            accuracy="A larger power narrows the kernel. Of `paired` it sharpens the surrogate loss.",
            size="Of `paired` each further sign doubles the counters.",
        ),
        "rows": Key(
            "Number of independent rows, R; of `fourier` the number P of frequencies, of `partition` rows of each "
            "level.",
            unit="rows",
            privacy="No change: the noise of each counter grows with the rows, so that ε is kept.",
            accuracy="The hashing error falls with 1/√R. The noise of an answer grows with √R where δ = 0, and does "
            "not depend on R where it is Gaussian. [How many rows](../how-to/rows.md) says how to choose.",
            size="Counters and deltas grow in proportion.",
        ),
        "buckets": Key(
            "Counters of a row, W.",
            unit="counters",
            accuracy="Hash codes that do not fit into W buckets collide. The answer subtracts the mean of collisions; "
            "their spread falls with W.",
            size="The sketch grows in proportion. A delta of few records hardly grows, because it lists occupied "
            "buckets.",
        ),
        "draws": Key(
            "How the hash functions of all rows are drawn together.",
            privacy=_HASHES_ARE_PUBLIC,
            accuracy="`sobol` errs less than `independent` rows, up to about 20 columns; `fastfood` is faster from "
            "about 16 columns on; `given` takes arrays beside the plan, and the kernel is theirs.",
        ),
        "seed": Key(
            "Seed of all hash functions. It is no secret, and noise is never drawn from it.",
            privacy=_HASHES_ARE_PUBLIC,
            accuracy="Another seed has other hashing errors, of the same size on average. Sketches of different seeds"
            " do not add up.",
        ),
        "sobol_sets": Key(
            'Number of independently scrambled Sobol sets. Only with `draws = "sobol"`.',
            unit="sets",
            privacy=_HASHES_ARE_PUBLIC,
            accuracy="Fewer sets are more even; more sets make the error bars less wide.",
        ),
        "parameters": Key(
            'Digest of the array of hash functions beside the plan. Only with `draws = "given"`.',
            privacy="The array is public. Never learn it on data that the plan protects.",
            accuracy="The rows define the kernel, so error bars contain only the noise.",
            size="The array travels with the plan, 4 bytes a number.",
        ),
        "groups": Key(
            "Groups of columns, each with a kernel of its own. The kernel of the plan is their product.",
            accuracy="Columns of different kinds get bandwidths that suit them.",
            default="none: `kernel`, `bandwidth` and `power` are for all columns",
        ),
        "transforms": Key(
            "Steps that are applied to each record, and each query, before it is hashed, in this order.",
            privacy="No change: each step depends on the plan alone.",
            accuracy="Columns of different widths should be scaled to the same width.",
            values="a list of 0 to 16 tables",
            default="none",
        ),
        "minhash": Key(
            "How sets are hashed.",
            privacy=_HASHES_ARE_PUBLIC,
            accuracy="`one-permutation` errs as `full`, and is faster for sets of more than about 150 ids.",
        ),
        "exponent": Key(
            'p of the kernel exp(−Σ |x − y|ᵖ/σᵖ). Only with `kernel = "exponential-p"`.',
            accuracy="1 is the `laplacian` kernel, 2 the `gaussian` one.",
        ),
        "fraction_bits": Key(
            "b: a counter stores its real number times 2ᵇ, rounded.",
            unit="bits",
            privacy="No change: the noise is scaled as well.",
            accuracy="Fewer bits round more coarsely. The noise relative to an answer does not change.",
            size="About one bit less in each counter of a delta for each bit less.",
        ),
        "order": Key(
            "Number of terms of the series in each column, p.",
            unit="terms",
            accuracy="A higher order truncates less. A low one (3 or 4) has less noise, for few records or a small ε.",
            size="Each cell has order^d counters.",
        ),
        "cutoff": Key(
            "How far from a query cells are read.",
            unit="bandwidths",
            accuracy="Records beyond it are left out, which the bound on the bias includes; a larger one reads the "
            "noise of more cells.",
        ),
        "weights": Key(
            "How many times each moment is stored, and so how much noise it has. `auto` takes the least noise for the "
            "mechanism, when the plan is made.",
            privacy="No change: the noise is calibrated for the weights.",
            accuracy="4 to 37 % less noise than `equal`, by dimension and noise.",
            default="equal",
        ),
        "cells": Key(
            "Whether cells are those of a grid, or the codes of a hash.",
            accuracy="With `grid`, statistics of columns can be computed; `lsh` is for many columns.",
        ),
        "levels": Key(
            'Number of dyadic levels of cells, each half as fine as the one before. Only with `cells = "grid"`.',
            unit="levels",
            privacy="No change: a record changes a counter in each level, and the noise grows so that ε is kept.",
            accuracy="Ranges, quantiles and heavy cells err less with levels, a single cell errs more.",
            size="Counters and deltas grow in proportion.",
        ),
        "form": Key(
            "Whether inner products are estimated, or only angles.",
            accuracy="`orthogonal` needs no `radius`, and does not know lengths.",
        ),
        "loss": Key("Loss that is fitted: `regression` of a target, or `margin` of a label."),
        "radius": Key(
            'Public length to which records are scaled. Only with `form = "inner"`.',
            unit="that of the records, after `transforms`",
            privacy="It is public: take it from public knowledge.",
            accuracy="1 to 1.5 times a typical length of a record; longer ones are shortened.",
            values="a number from 2^-64 to 2^64",
        ),
        "norm_bound": Key(
            'Public bound on the length of the coefficients, with −1 for the target. Only with `form = "inner"`.',
            accuracy="A larger bound allows steeper models, and its answers err more.",
            values='a number from 2^-64 to 2^64, above 1 with `loss = "regression"`; with `margin` the default is 1',
        ),
    },
    "sketch.groups": {
        "columns": Key("Columns of the group, from 0 on.", values="a list of rising integers from 0 to `dim` − 1"),
        "kernel": Key("Kernel of the group, as `sketch.kernel`.", accuracy="As `sketch.kernel`."),
        "bandwidth": Key(
            "Bandwidth of the group, as `sketch.bandwidth`.",
            unit="that of its columns, after `transforms`",
            privacy="As `sketch.bandwidth`.",
            accuracy="As `sketch.bandwidth`.",
        ),
        "power": Key("Power of the group's kernel, as `sketch.power`.", unit="hashes", accuracy="As `sketch.power`."),
    },
    "sketch.transforms": {
        "kind": Key(
            "`scale` multiplies each column by a factor, `clip` clips to bounds, `unit-norm` divides by the length, "
            "`linear` multiplies by a matrix.",
            accuracy="Statistics and synthetic records need plans with `scale` alone, which can be inverted.",
        ),
        "factor": Key(
            'Factor of each column. Only with `kind = "scale"`.',
            accuracy="It changes the width of a column relative to the bandwidth.",
            values="a list of `dim` numbers of size 2^-64 to 2^64",
        ),
        "lower": Key(
            'Smallest value of each column. Only with `kind = "clip"`.',
            unit="that of what comes out of the step before",
            privacy=_PUBLIC_BOUNDS,
            accuracy="Clipped records count at the bound.",
            values="a list of `dim` numbers, at most 2^64 in size",
        ),
        "upper": Key(
            'Largest value of each column. Only with `kind = "clip"`.',
            unit="that of what comes out of the step before",
            privacy=_PUBLIC_BOUNDS,
            accuracy="Clipped records count at the bound.",
            values="a list of `dim` numbers, at most 2^64 in size, each above that of `lower`",
        ),
        "matrix": Key(
            'Digest of the matrix beside the plan. Only with `kind = "linear"`.',
            privacy="The matrix is public. Never learn it on data that the plan protects.",
            accuracy="A projection to fewer columns loses what it leaves out.",
            size="The matrix travels with the plan, 4 bytes a number.",
        ),
    },
    "privacy": {
        "mode": Key(
            "Who adds the noise: the aggregator (`central`), each client a share of it in a masked sum (`secure`), or"
            " each device by itself (`local`).",
            privacy="`central` trusts the aggregator with exact counters; `secure` shows it only the sum of a cohort;"
            " `local` shows it nothing without noise.",
            accuracy="`secure` has the noise of `central`, or a little more; `local` has that of each contributor.",
            size="`secure` and the form `silo` of `local` send all counters once a window; reports take a few bytes a"
            " record.",
        ),
        "epsilon": Key(
            "ε of each release, for one unit.",
            privacy="The odds that one unit is included change at most by the factor e^ε. "
            "[What ε to take](../how-to/epsilon.md) says it in words.",
            accuracy="Noise grows in proportion to 1/ε.",
            size="Releases of a smaller ε have larger counters: about one bit more for each half.",
        ),
        "delta": Key(
            "δ of each release: how probable it may be that ε does not hold.",
            privacy="0 is pure differential privacy. Above 0 keep it far below 1 over the number of records. With "
            "reports it belongs to the statement about shuffled ones alone.",
            accuracy="With δ > 0 many rows have far less noise, because it is Gaussian.",
        ),
        "unit": Key(
            "Whose data a release protects: one record, or all records of a client in a window.",
            privacy="With `client`, what all of them tell together is protected.",
            accuracy="With `client` the noise is up to `records_per_client` times as large.",
        ),
        "records_per_client": Key(
            'm: most records of a client that count in a window. Only with `unit = "client"`, which requires it.',
            unit="records a client and window",
            privacy="The device drops records above it, so that the guarantee holds for all of its data.",
            accuracy="The noise grows in proportion to m; a small m drops records.",
        ),
        "total_epsilon": Key(
            "Limit on ε for all releases of a population together. The first plan of a population fixes it.",
            privacy="When it is used up, nothing more is released.",
        ),
        "total_delta": Key(
            "Limit on δ for all releases of a population together.",
            privacy="Above 0 it allows the ledger to add up releases as zCDP, so that many windows cost much less ε. "
            "A secure sum needs it above 0, for the probability that its protocol fails.",
        ),
        "population": Key(
            "Name of the ledger that the releases of this plan are charged to. Plans about the same people have the "
            "same.",
            privacy="Two populations are two budgets: never divide the data of the same people between them.",
            default="the one population without a name",
        ),
        "participation": Key(
            "That it is hidden who took part. Only in mode `central`, where it always is.",
            privacy="`protected` is the only value.",
        ),
        "min_clients_share": Key(
            "Share of ε that the noisy test of `window.min_clients` takes.",
            unit="share of ε",
            privacy="No change: test and release together cost ε.",
            accuracy="A larger share makes the test more exact, and answers a little less.",
        ),
        "noise": Key(
            "Which noise is calibrated when the plan is made. `auto` takes what errs least within the limits; the "
            "compiled plan contains the mechanism instead.",
            privacy="`gaussian` needs δ > 0.",
            accuracy="Laplace noise is less with few rows, Gaussian noise with many.",
            default="auto",
        ),
        "mechanism": Key(
            "The noise with its exact parameters. `hushsum plan make` writes it; devices and services verify that it "
            "supports the guarantee.",
            privacy="A mechanism that does not support ε and δ is refused.",
            accuracy=TABLE,
            default="calibrated from the other keys",
        ),
        "secure": Key(
            "The cohorts of mode `secure`.",
            privacy=TABLE,
            accuracy=TABLE,
            size=TABLE,
            default="every key at its default",
        ),
        "local": Key(
            "The form of mode `local`.",
            privacy=TABLE,
            accuracy=TABLE,
            size=TABLE,
            default="every key at its default",
        ),
    },
    "privacy.mechanism": {
        "name": Key(
            "Distribution of the noise, or how a report is randomised.",
            privacy="`discrete-laplace` gives pure ε, `discrete-gaussian` ε with δ > 0; the others are for reports.",
            accuracy="As `privacy.noise`.",
        ),
        "scale": Key(
            "b of discrete Laplace noise, σ² of discrete Gaussian noise; of reports the odds of the true value.",
            unit="counter values (σ²: their square)",
            privacy="A smaller scale than ε allows is refused.",
            accuracy="The standard deviation of each counter's noise is √2·b, or σ.",
        ),
        "count_scale": Key(
            "How much one record raises the counter of the number of records; 0: there is none, because rows sum to "
            "it.",
            unit="counter values a record",
            accuracy="A larger one makes the number of records more exact, and all counters noisier.",
        ),
        "field": Key(
            "Order of the field of `projective` reports. No other mechanism has it.",
            values="a prime from 2 to 2147483648",
        ),
        "clients_scale": Key(
            "b of the noise on the number of clients. Only with `window.min_clients` in mode `central`.",
            unit="clients",
            privacy="A smaller scale than `min_clients_share` allows is refused.",
            accuracy="How uncertain the test of the number of clients is.",
            values="an exact rational above 0; required with `window.min_clients`",
        ),
        "honest_survivors": Key(
            "h: number of honest clients whose shares together are the noise. Only in mode `secure`, which requires "
            "it.",
            unit="clients",
            privacy="It follows from the cohort; another value is refused.",
            accuracy="All members add shares, so that a sum has a little more noise than h of them.",
        ),
        "factorisation": Key(
            "How the noise of each release is made of the draws of all steps. Only with `window.release` `cumulative`, "
            "which requires it.",
            privacy=TABLE,
            accuracy=TABLE,
            size=TABLE,
        ),
    },
    "privacy.mechanism.factorisation": {
        "theta": Key(
            "How much of each buffer of earlier noise is kept at a step. Only of `discrete-gaussian`.",
            unit="2^−20",
            privacy="The norm of the factorisation, and so σ², follows from it; a smaller σ² is refused.",
            accuracy="It decides how the error grows with the steps.",
        ),
        "omega": Key(
            "How much of each buffer is taken off the noise of a step. Only of `discrete-gaussian`.",
            unit="2^−20",
            privacy="As `theta`.",
            accuracy="As `theta`.",
        ),
        "bits": Key(
            "k: noise is drawn in units of 2^−k of a counter. Only of `discrete-gaussian`.",
            privacy="More bits cost less ε for rounding.",
        ),
        "blocks": Key(
            "How many windows one node of each level of the tree has. Only of `discrete-laplace`.",
            unit="windows",
            privacy="Each level holds each record once: more levels need more noise in each node.",
            accuracy="A release has the noise of a few nodes of each level.",
        ),
    },
    "privacy.secure": {
        "cohort": Key(
            "N: clients of a round.",
            unit="clients",
            privacy="More clients tolerate more corrupt ones.",
            accuracy="One release for each window needs a whole cohort; larger sums have less relative noise.",
            size="Messages of a client grow with log N.",
        ),
        "dropout": Key(
            "Greatest share of a cohort that may drop out; beyond it the round fails.",
            unit="share of the cohort",
            accuracy="Each share of noise is larger, because fewer clients may remain.",
        ),
        "corrupt": Key(
            "γ: greatest share of a cohort that may be corrupt. With a pool it follows from `corrupt_clients` and "
            "`pool`.",
            unit="share of the cohort",
            privacy="Noise of corrupt clients protects no one, so it is not counted.",
            accuracy="Each share of noise is larger, because fewer clients are counted as honest.",
        ),
        "corrupt_clients": Key(
            "Number of clients of the whole fleet that may be corrupt. Given together with `pool`.",
            unit="clients",
            privacy="With the pool it bounds the corrupt share of a cohort by its draw, and not by assumption.",
            default="none: `corrupt` is assumed of each cohort",
            values="an integer from 0 to 9007199254740991; required with `pool`",
        ),
        "adversary": Key(
            "Whether the server may deviate from the protocol.",
            privacy="`honest-but-curious` trusts the server to follow the protocol.",
            size="`honest-but-curious` needs fewer neighbours, and so smaller messages.",
        ),
        "directory": Key(
            "Digest of the key registry of the clients.",
            privacy="Without it the server is trusted not to invent clients or exchange their keys.",
            default="none: clients announce their own keys",
        ),
        "suite": Key("Version of key agreement, cipher and signature."),
        "cohort_wait": Key(
            "How long a cohort waits to fill. The lateness of windows is at least this.",
            unit="duration",
        ),
        "pool": Key(
            "Clients that must wait before a cohort is drawn from them. Given together with `corrupt_clients`.",
            unit="clients",
            privacy="An attacker cannot fill a cohort by arriving first.",
            default="none: the first clients to arrive form a cohort",
            values="an integer above `cohort`, from 4 to 1000000; required with `corrupt_clients`",
        ),
        "failures": Key(
            "How much of `total_delta` the failures of the protocol may use: all of it (`whole`), or an eighth "
            "(`reserved`).",
            privacy="With `reserved` the ledger also counts pure windows as zCDP, and many windows of unit `client` "
            "cost less.",
            default="whole",
        ),
    },
    "privacy.local": {
        "form": Key(
            "`report`: one randomised report of each record. `silo`: one noised sum of each client and window.",
            privacy="Both are private before they leave the device.",
            accuracy="`silo` has the noise of `central` times the square root of the number of clients; `report` has "
            "noise of each record.",
            size="A report takes a few bytes; a silo sends all counters once a window.",
        ),
        "randomiser": Key(
            "How a report is drawn: `k-rr` or `projective` of `hashed`, `one-bit` of `fourier`. Only with form "
            "`report`.",
            accuracy="`projective` errs less than `k-rr` with many buckets and a small ε.",
            values="`k-rr` (default) or `projective` of `hashed`, `one-bit` of `fourier`",
        ),
        "memoise": Key(
            "Whether a device sends the same report again for a record that it has reported before. TOML may say true"
            " or false. Only with form `report`.",
            privacy="A record that recurs reveals over many windows only what one report reveals, but that it recurred "
            "is visible. It excludes `shuffle_min`.",
        ),
        "shuffle_min": Key(
            "Fewest reports in a batch of a shuffler; 0: there is no shuffler. Only with form `report`.",
            unit="reports",
            privacy="Above 0, `delta` and this state a smaller ε against observers after the shuffler.",
            accuracy="A window with fewer reports forwards nothing.",
        ),
    },
    "window": {
        "epoch": Key("Start of window 0.", unit="UTC time"),
        "length": Key(
            "Length of a window. Each window has one release.",
            unit="duration",
            privacy="Each tumbling window is charged. Shorter windows use up the limits of unit `client` sooner; a "
            "record is in one window only.",
            accuracy="Longer windows have more records, and so less relative noise.",
            size="One sketch in memory, and one release, for each window.",
        ),
        "lateness": Key(
            "How long after its end a window still accepts deltas.",
            unit="duration",
            accuracy="Deltas that arrive later do not count.",
            size="Windows stay open, and in memory, for longer.",
        ),
        "late": Key(
            "What becomes of a delta that arrives after its window is sealed: it counts nowhere (`drop`), or its "
            "device moves it to the next open window (`next`). `next` only in mode `central`.",
            privacy="Moved records count against the bounds of the window that they move to.",
            accuracy="With `next` late records count, in a window that is not theirs.",
            default="drop",
        ),
        "time": Key(
            "Which time decides the window of a record: that of the event (`event`), or of its first sending "
            "(`arrival`: the device gives it the window that is open by the service's clock). `arrival` only in mode "
            '`central`, and with `late = "next"`.',
            privacy="With `arrival` the bounds of a client hold for the windows in which its records arrive.",
            accuracy="With `arrival` no record is lost because its device was offline; it counts when it arrives.",
        ),
        "release": Key(
            "What a release contains: the records of its window (`tumbling`), or those of all windows so far "
            "(`cumulative`, only in mode `central`).",
            privacy="`cumulative`: one ε covers the whole sequence of `horizon` releases.",
            accuracy="`cumulative`: of T = 10,000 releases the worst has 4.04 times the noise of one window at δ > 0, "
            "and 18.7 times at δ = 0; summed tumbling windows have √T = 100 times. A short sequence at δ = 0 gains "
            "nothing over sums; in any other, one window taken out, as the difference of two releases, has more noise "
            "than a tumbling window.",
            size="`cumulative`: the service keeps up to five arrays of the size of a release.",
        ),
        "horizon": Key(
            "T: how many releases of a cumulative sequence ε covers. Required with `cumulative`, and only there.",
            unit="releases",
            privacy="After T releases nothing is released: the next plan adds its own ε.",
            accuracy="A longer sequence has more noise. At δ > 0 it grows slowly: the worst of 10,000 releases has "
            "4.04 times the noise of one window. At δ = 0 it grows faster, to 18.7 times, and a short sequence has the "
            "noise of summed tumbling windows.",
        ),
        "windows_per_client": Key(
            "In how many windows of a cumulative sequence a client's records may count. Required with `cumulative` and "
            "unit `client`, and only there.",
            unit="windows",
            privacy="Devices and the service enforce it. A client that has reached it is no longer counted.",
            accuracy="More windows need more noise: times 1.9, 8.9 and 77 for 2, 10 and 100 windows at δ > 0.",
            values="an integer from 1 to `horizon`",
        ),
        "min_clients": Key(
            "A window with fewer clients is withheld; 0: every window is released. Not in mode `secure`, and not with"
            " reports.",
            unit="clients",
            privacy="In mode `central` the test has noise and is part of the guarantee. For silos the number is "
            "exact, because it is visible who takes part.",
            accuracy="Above 0 a share of ε is for the test.",
        ),
        "min_reports": Key(
            "A window with fewer reports is withheld; 0: every window is released. Only with reports.",
            unit="reports",
            default="0",
        ),
    },
}
