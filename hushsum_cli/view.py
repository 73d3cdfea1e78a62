"""`hushsum view`: releases in files, as a page in a browser."""

from pathlib import Path

import click

from hushsum_cli.output import examples

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    short_help="Show releases as a web page, on this machine.",
    epilog=examples(
        "hushsum view today.hush",
        "hushsum view releases/*.hush --open",
    ),
)
@click.argument("release_files", metavar="FILE.hush...", type=_FILE, nargs=-1, required=True)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1.  [default: any free one]")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
def view(*, release_files: tuple[Path, ...], port: int, opens: bool) -> None:
    """Show releases as a web page: pictures, questions at a point, comparisons, and series over time.

    Prints the address to open, and serves until Ctrl-C. The page is reachable from this machine alone, and asks for the
    token in the address, so that other users of the machine cannot read it. The token opens one session.

    Nothing is sent to any other address, and looking at a release costs no privacy budget.
    """
    import time
    import webbrowser
    from tempfile import TemporaryDirectory

    from hushsum.entropy import OsEntropy
    from hushsum_page.viewer import Viewer, opening_page

    try:
        viewer = Viewer(release_files, port, entropy=OsEntropy(), clock=time.monotonic)
    except OSError as error:
        if error.filename is not None:  # of a file
            raise
        raise click.ClickException(f"127.0.0.1:{port} cannot be used: {error.strerror or error}") from error
    click.echo(f"Open {viewer.address}")
    click.echo("Ctrl-C stops it.")
    with TemporaryDirectory(prefix="hushsum-view-") as folder:  # its mode is 700
        if opens:
            # Not the address itself, which every user of the machine could read among the arguments of the browser.
            page = Path(folder) / "open.html"
            page.write_text(opening_page(viewer.address), encoding="utf-8")
            webbrowser.open(page.as_uri())
        viewer.server.run()
