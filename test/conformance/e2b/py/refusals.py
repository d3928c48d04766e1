"""What is not served fails as its caller can understand."""

from check import check, equal, raises, run
from e2b import BuildException, NotFoundException, Sandbox, SandboxException, Secret, SecretException, Template, Volume, VolumeException
from e2b_code_interpreter import Sandbox as Interpreter

sbx = Sandbox.create(timeout=600)


def refused(fn, says, kind=SandboxException):
    e = raises(kind, fn)
    assert says in str(e) and "501" in str(e), e


@check("pause, fork and snapshots")
def _():
    refused(sbx.pause, "paused")
    refused(sbx.fork, "forked")
    refused(sbx.create_snapshot, "snapshots")
    refused(lambda: Sandbox.list_snapshots().next_items(), "snapshots")
    equal(Sandbox.delete_snapshot("team/snap:default"), False)
    assert sbx.is_running()


@check("changes of the network")
def _():
    refused(lambda: sbx.update_network({"allow_out": ["1.1.1.1"]}), "reach")


@check("what a create asks for and cannot have")
def _():
    for opts, says in (
        ({"lifecycle": {"on_timeout": "pause"}}, "autoPause"),
        ({"network": {"allow_out": ["1.1.1.1"]}}, "allowOut"),
        ({"volume_mounts": {"/mnt": "vol"}}, "volumeMounts"),
        ({"mcp": {"github": {}}}, "mcp"),
        ({"iam": {"tokens": {"a": {"audience": "x", "token_type": "JWT-SVID"}}}}, "iam"),
    ):
        refused(lambda opts=opts: Sandbox.create("base", **opts), says)


@check("builds of templates, volumes and secrets")
def _():
    refused(lambda: Template.build(Template().from_base_image().run_cmd("true"), "mine"), "hutch template build", BuildException)
    refused(lambda: Volume.create("vol"), "volumes", VolumeException)
    refused(lambda: Volume.list(), "volumes", VolumeException)
    refused(lambda: Secret.create("name", "value"), "secrets", SecretException)


@check("code in contexts")
def _():
    code = Interpreter.connect(sbx.sandbox_id)
    e = raises(NotFoundException, lambda: code.run_code("1+1"))
    assert str(e).startswith("not supported here: ") and "code interpreter" in str(e), e
    raises(NotFoundException, code.create_code_context)
    equal(code.commands.run("echo still here").stdout, "still here\n")


run(lambda: sbx.kill())
