"""Sessions of the workspace; `nox -l` lists them.

Sessions that need the whole engine share one environment, made by the session `workspace`: torch and the C++ extension
are installed once. The per-component sessions have their own, which proves that a component's declared dependencies
suffice.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling torch again in each process takes it four seconds
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "typecheck", "tests"]

ROOT = Path(__file__).parent
CPU = ROOT / "constraints" / "cpu.txt"
WORKSPACE = ROOT / ".nox" / "workspace"
REPORTS = ROOT / ".nox" / "reports"
PURE_BUILD = ("hatchling>=1.27", "editables")
NATIVE_BUILD = ("scikit-build-core[hatchling]>=1.1", "pybind11>=3.0,<4", "cmake>=3.24", "ninja")
HOST_PYTHON = "3.12"
"""Of the GPU hosts that bundles are for."""
HOST_HAS = {"torch": "2.11.0+host", "triton": "3.6.0+host"}
"""What is installed on them; the local part of the version keeps the resolver from the registry's."""
HOST_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 26, 24, 17, 12, 5)]
HOST_PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
WRITE_STAND_IN = "import pathlib, sys, wheelhouse; wheelhouse.write_stand_in(pathlib.Path(sys.argv[1]), *sys.argv[2:])"
GPU_TESTS = ("kernels", "model", "engine", "eplb")
"""Components with tests that need a GPU."""
SUITES_ON_A_GPU = ("async_equals_sync", "structured_runs", "structured_schedules", "drafts_greedy")
"""Integration tests that run on the backend which THALWEG_TEST_BACKEND names."""
TEST_TOOLS = ("pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100")

PROJECTS = {
    path.parent.name: nox.project.load_toml(path)["project"] for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}
FOLDER_OF = {canonicalize_name(project["name"]): folder for folder, project in PROJECTS.items()}
COMPONENTS = [folder for folder in PROJECTS if folder != "meta"]
NATIVE = [folder for folder in COMPONENTS if (ROOT / "packages" / folder / "CMakeLists.txt").is_file()]
"""Components with a C++ extension."""


def test_extra(folder: str) -> list[str]:
    """What the folder's tests need beyond its dependencies."""
    lines: list[str] = PROJECTS[folder].get("optional-dependencies", {}).get("test", [])
    return lines


def closure(folder: str) -> list[str]:
    """The folder's workspace dependencies, those of its tests included, dependencies first, then the folder itself."""
    order: list[str] = []

    def visit(name: str) -> None:
        for line in (*PROJECTS[name].get("dependencies", []), *test_extra(name)):
            inner = FOLDER_OF.get(canonicalize_name(Requirement(line).name))
            if inner is not None and inner not in order:
                visit(inner)
        order.append(name)

    visit(folder)
    return order


def needs_torch(folder: str) -> bool:
    """Whether the folder or a workspace package it needs depends on torch, or on what brings it."""
    lines = (line for name in closure(folder) for line in PROJECTS[name].get("dependencies", []))
    return any(Requirement(line).name in {"torch", "xgrammar"} for line in lines)


def target(folder: str) -> str:
    """The path to install, with the extra that its tests need."""
    return f"packages/{folder}[test]" if test_extra(folder) else f"packages/{folder}"


def install_workspace(session: nox.Session, *folders: str, extra: tuple[str, ...] = ()) -> None:
    """Install workspace packages editable, in one resolution, so that none is looked for on the registry."""
    session.env["PIP_CONSTRAINT"] = str(CPU)
    session.env["SKBUILD_CMAKE_DEFINE"] = "THALWEG_WERROR=ON"
    wanted = dict.fromkeys(name for folder in folders for name in closure(folder))
    targets = [arg for name in wanted for arg in ("-e", target(name))]
    session.install(*PURE_BUILD, *(NATIVE_BUILD if any(name in wanted for name in NATIVE) else ()))
    # What is imported is compiled then; most of what is installed never is.
    session.install("--no-build-isolation", "--no-compile", *targets, *extra)
    session.run("python", "tools/check_environment.py", silent=True)


def fingerprint() -> str:
    """Changes whenever the shared environment has to be installed again."""
    digest = hashlib.sha256()
    inputs = [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("packages/*/src/thalweg/*/__about__.py"), CPU]
    inputs += [ROOT / "noxfile.py", *ROOT.glob("packages/*/CMakeLists.txt")]
    inputs += [path for path in ROOT.glob("packages/*/cpp/**/*") if path.is_file()]
    for path in sorted(inputs):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@nox.session(default=False)
def workspace(session: nox.Session) -> None:
    """Install every package, editable, into the environment that the other sessions share."""
    stamp = WORKSPACE / "installed"
    # Not the stubs, which have the same stem and are always there.
    libraries = all(any(ROOT.glob(f"packages/{name}/src/thalweg/{name}/_core*.so")) for name in NATIVE)
    if libraries and stamp.is_file() and stamp.read_text() == fingerprint():
        session.log("up to date")
        return
    stamp.unlink(missing_ok=True)
    install_workspace(session, *COMPONENTS, extra=(*TEST_TOOLS, "mypy>=2", "packaging"))
    stamp.write_text(fingerprint())


def run_python(session: nox.Session, *arguments: str) -> None:
    """Run the shared environment's Python on one thread.

    At the embedded checkpoint's sizes a second thread gains nothing, and on a busy host spinning threads starve.
    """
    session.run(str(WORKSPACE / "bin" / "python"), *arguments, external=True, env={"OMP_NUM_THREADS": "1"})


def run_pytest(session: nox.Session, *arguments: str) -> None:
    """Two workers: as fast as two cores allow."""
    report = f"--junitxml={REPORTS / session.name}.xml"
    run_python(session, "-m", "pytest", "-n2", "--dist=worksteal", report, *arguments)


@nox.session(venv_backend="none", requires=["workspace"])
def quickstart(session: nox.Session) -> None:
    """Generate text with the embedded checkpoint."""
    run_python(session, "examples/quickstart.py", *session.posargs)


@nox.session(venv_backend="none", requires=["workspace"])
def tests(session: nox.Session) -> None:
    """Every unit test of every component, and of the tools that train the embedded checkpoint."""
    folders = [*(f"packages/{name}/tests" for name in COMPONENTS), "tools/train/tests"]
    run_pytest(session, *folders, "--ignore-glob=*/soak/*", *session.posargs)


@nox.session(venv_backend="none", requires=["workspace"])
def integration(session: nox.Session) -> None:
    """Components together, the README examples and the benchmarks at their smallest size."""
    run_pytest(session, "integration_tests", "--ignore-glob=*/soak/*", *session.posargs)


def register_component(folder: str) -> None:
    """The sessions `tests-<folder>` and, where there are long random runs, `soak-<folder>`."""

    @nox.session(name=f"tests-{folder}", tags=["tests"], default=False)
    def component_tests(session: nox.Session) -> None:
        install_workspace(session, folder, extra=TEST_TOOLS)
        if not needs_torch(folder):
            session.run("python", "-c", "import importlib.util, sys; sys.exit(bool(importlib.util.find_spec('torch')))")
        session.run("pytest", f"packages/{folder}/tests", "--ignore-glob=*/soak/*", *session.posargs)

    if (ROOT / "packages" / folder / "tests" / "soak").is_dir():

        @nox.session(name=f"soak-{folder}", venv_backend="none", requires=["workspace"], tags=["soak"], default=False)
        def component_soak(session: nox.Session) -> None:
            run_pytest(session, f"packages/{folder}/tests/soak", *session.posargs)


for component in COMPONENTS:
    register_component(component)


@nox.session(name="soak-integration", venv_backend="none", requires=["workspace"], tags=["soak"], default=False)
def soak_integration(session: nox.Session) -> None:
    """The trained checkpoint on all its evaluation windows, and long random runs of the whole engine."""
    run_pytest(session, "integration_tests/soak", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and formatting."""
    session.install("ruff==0.17.*")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(venv_backend="none", requires=["workspace"])
def typecheck(session: nox.Session) -> None:
    """Strict mypy over every component."""
    run_python(session, "-m", "mypy", *(arg for name in COMPONENTS for arg in ("-p", f"thalweg.{name}")))


@nox.session(venv_backend="none", requires=["workspace"], default=False)
def stubs(session: nox.Session) -> None:
    """Compare the committed stubs of the extensions with the built ones."""
    for name in NATIVE:
        allowed = f"packages/{name}/stubtest_allowlist.txt"
        run_python(session, "-m", "mypy.stubtest", "--allowlist", allowed, f"thalweg.{name}._core")


@nox.session(venv_backend="none", requires=["workspace"], default=False)
def example(session: nox.Session) -> None:
    """Run every script of examples."""
    for script in sorted(Path("examples").glob("*.py")):
        run_python(session, str(script))


@nox.session(venv_backend="none", requires=["workspace"], default=False)
def bench(session: nox.Session) -> None:
    """Run the benchmarks named after `--`, or all that can run here; with --smoke at their smallest size."""
    run_python(session, "tools/run_benchmarks.py", *session.posargs)


@nox.session(venv_backend="none", default=False)
def gpu(session: nox.Session) -> None:
    """Run the tests that need a Hopper GPU, then whole suites on it, in the environment that nox is run in."""
    folders = [f"packages/{name}/tests" for name in GPU_TESTS]
    suites = [f"integration_tests/test_{name}.py" for name in SUITES_ON_A_GPU]
    require = {"THALWEG_REQUIRE": "sm90"}
    session.run("python", "-m", "pytest", "-m", "gpu", *folders, *session.posargs, external=True, env=require)
    on_gpu = require | {"THALWEG_TEST_BACKEND": "sm90"}
    session.run("python", "-m", "pytest", *suites, *session.posargs, external=True, env=on_gpu)


@nox.session(name="compile", default=False)
def compile_kernels(session: nox.Session) -> None:
    """Compile every device kernel, for the newest architecture or for those after `--`; needs nvcc, and no GPU."""
    install_workspace(session, "kernels", extra=tuple(PROJECTS["kernels"]["optional-dependencies"]["nvidia"]))
    session.run("python", "tools/compile_kernels.py", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site; warnings are errors."""
    session.install("mkdocs-material", "mkdocstrings[python]")
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def build(session: nox.Session) -> None:
    """Build an sdist and a wheel of every package, then use the wheels alone in a fresh environment."""
    session.env["PIP_CONSTRAINT"] = str(CPU)
    session.install("build", "twine", *PURE_BUILD, *NATIVE_BUILD)
    out = ROOT / "dist"
    for stale in out.glob("*"):
        stale.unlink()
    for folder in PROJECTS:
        command = ("python", "-m", "build", "--no-isolation", "--outdir", str(out), f"packages/{folder}")
        session.run(*command, silent=True)
    session.run("twine", "check", "--strict", *(str(file) for file in sorted(out.iterdir())), silent=True)
    check_each_wheel_alone(session, out)
    fresh = Path(session.create_tmp()) / "fresh"
    python = make_environment(session, fresh, out, "thalweg[all]", "pytest", "packaging")
    session.run(python, "tools/check_environment.py", external=True)
    report = f"--junitxml={REPORTS / 'build'}.xml"
    tests = ("integration_tests/test_together.py", "integration_tests/test_wheels.py")
    run = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", report, *tests)
    session.run(*run, external=True, env={"THALWEG_TEST_WHEELS": "1"})


def make_environment(session: nox.Session, where: Path, wheels: Path, *requirements: str) -> str:
    """A fresh environment outside the source tree's reach; returns its Python."""
    session.run("python", "-m", "venv", "--clear", str(where))
    python = str(where / "bin" / "python")
    install = (python, "-m", "pip", "install", "--no-compile", "--find-links", str(wheels), *requirements)
    session.run(*install, external=True, silent=True)
    return python


def check_each_wheel_alone(session: nox.Session, wheels: Path) -> None:
    """Components without torch are installed and imported one by one; the others come with the meta-package."""
    for folder in COMPONENTS:
        if not needs_torch(folder):
            check_wheel_alone(session, wheels, folder)


def check_wheel_alone(session: nox.Session, wheels: Path, folder: str) -> None:
    """Install one component's wheel into an environment of its own and load every public name."""
    where = Path(session.create_tmp()) / f"alone-{folder}"
    python = make_environment(session, where, wheels, PROJECTS[folder]["name"])
    load = f"import thalweg.{folder} as module; [getattr(module, name) for name in module.__all__]"
    session.run(python, "-c", f"{load}; print(module.__file__)", external=True)


def outside_requirements(extras: list[str]) -> list[str]:
    """What an installation of `thalweg[extras]` takes from a registry, and what building the extensions does."""
    lines = [*PURE_BUILD[:1], *NATIVE_BUILD]
    waiting = [Requirement(f"thalweg[{','.join(extras)}]")]
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        folder = FOLDER_OF.get(canonicalize_name(requirement.name))
        if folder is None:
            lines.append(str(requirement))
        elif str(requirement) not in seen:
            seen.add(str(requirement))
            project = PROJECTS[folder]
            optional = project.get("optional-dependencies", {})
            inner = (line for extra in requirement.extras for line in optional[extra])
            waiting += [Requirement(line) for line in (*project.get("dependencies", []), *inner)]
    return sorted(set(lines))


@nox.session(default=False)
def bundle(session: nox.Session) -> None:
    """Collect all that a GPU host without a network installs; extras of thalweg besides `nvidia` after `--`."""
    extras = ["nvidia", *session.posargs]
    session.install("build", "packaging", *PURE_BUILD, *NATIVE_BUILD)
    out = ROOT / "dist" / "bundle"
    wheels, stand_ins = out / "wheels", Path(session.create_tmp()) / "stand-ins"
    for folder in (wheels, stand_ins):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for name in PROJECTS:
        kind = "--sdist" if name in NATIVE else "--wheel"  # the host builds extensions for its own Python
        build = ("python", "-m", "build", "--no-isolation", kind, "--outdir", str(wheels), f"packages/{name}")
        session.run(*build, silent=True)
    constraints = stand_ins / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in HOST_HAS.items()))
    for name, version in HOST_HAS.items():
        session.run("python", "-c", WRITE_STAND_IN, str(stand_ins), name, version, env={"PYTHONPATH": "tools"})
    platforms = [option for platform in HOST_PLATFORMS for option in ("--platform", platform)]
    abis = ("--abi", f"cp{HOST_PYTHON.replace('.', '')}", "--abi", "abi3", "--abi", "none")
    host = ("--only-binary=:all:", "--implementation", "cp", "--python-version", HOST_PYTHON, *platforms, *abis)
    download = ("python", "-m", "pip", "download", "--dest", str(wheels), "--find-links", str(stand_ins), *host)
    session.run(*download, *outside_requirements(extras), env={"PIP_CONSTRAINT": str(constraints)})
    for name in HOST_HAS:
        for stand_in in wheels.glob(f"{name}-*"):
            stand_in.unlink()
    provided = [option for name, version in HOST_HAS.items() for option in ("--provided", f"{name}=={version}")]
    check = ("python", "tools/wheelhouse.py", str(wheels), f"thalweg[{','.join(extras)}]", *PURE_BUILD[:1])
    session.run(*check, *NATIVE_BUILD, "--python", HOST_PYTHON, *provided)
    shutil.copy(ROOT / "docs" / "how-to" / "gpu.md", out / "README.md")
    shutil.copytree(ROOT / "examples", out / "examples", dirs_exist_ok=True)
    archive = shutil.make_archive(str(ROOT / "dist" / "thalweg-bundle"), "tar", out.parent, out.name)
    session.log("%s, %d MB", archive, Path(archive).stat().st_size >> 20)


@nox.session(name="build-alone", default=False)
def build_alone(session: nox.Session) -> None:
    """Check every component's wheel from `dist` alone, those that need torch too; needs `build` first."""
    session.env["PIP_CONSTRAINT"] = str(CPU)
    for folder in COMPONENTS:
        check_wheel_alone(session, ROOT / "dist", folder)


def register_rebuild(folder: str) -> None:
    """The session `rebuild-<folder>`."""

    @nox.session(name=f"rebuild-{folder}", venv_backend="none", default=False)
    def rebuild(session: nox.Session) -> None:
        """Recompile what changed and put the extension back in place."""
        for tree in sorted(Path(f"packages/{folder}/build").glob("cp*")):
            session.run("cmake", "--build", str(tree), "--target", "install", external=True)


def register_sanitizers(folder: str) -> None:
    """The session `sanitize-<folder>`, with the sanitizers of memory and of threads."""

    @nox.session(name=f"sanitize-{folder}", default=False)
    @nox.parametrize("sanitizers", ["address,undefined", "thread"], ids=["memory", "thread"])
    def sanitize(session: nox.Session, sanitizers: str) -> None:
        """C++ unit tests under AddressSanitizer and UBSan, and under ThreadSanitizer."""
        session.install("cmake>=3.24", "ninja", "pybind11>=3.0,<4")
        config = session.run("python", "-m", "pybind11", "--cmakedir", silent=True)
        options = {
            "pybind11_DIR": str(config).strip(),
            "SKBUILD_PROJECT_NAME": f"thalweg_{folder}",
            "SKBUILD_PROJECT_VERSION": "0.0.0",
            "SKBUILD_PROJECT_VERSION_FULL": "0.0.0",
            "CMAKE_BUILD_TYPE": "Debug",
            "CMAKE_CXX_FLAGS_DEBUG": "-O1",  # a report needs lines, and compiling takes longer than the tests
            "THALWEG_BUILD_TESTS": "ON",
            "THALWEG_WERROR": "ON",
            "THALWEG_SANITIZE": sanitizers,
        }
        tree = session.create_tmp()
        flags = [f"-D{name}={value}" for name, value in options.items()]
        session.run("cmake", "-S", f"packages/{folder}", "-B", tree, "-G", "Ninja", *flags)
        session.run("cmake", "--build", tree, "--target", "cpp_tests")
        session.run("ctest", "--test-dir", tree, "--output-on-failure")


for native in NATIVE:
    register_rebuild(native)
    register_sanitizers(native)


@nox.session(venv_backend="none", default=False)
def dev(session: nox.Session) -> None:
    """Print the commands that set up an editable environment by hand."""
    session.log("pip install -c constraints/cpu.txt %s", " ".join([*PURE_BUILD, *NATIVE_BUILD]))
    packages = " ".join(f"-e packages/{name}" for name in PROJECTS)
    session.log("pip install -c constraints/cpu.txt --no-build-isolation %s", packages)
