"""Compiled libraries are cached; without a compiler the error names the remedy."""

import pytest

pytest.importorskip("torch")

from cubemesh.kernels.cpu import compiler


def test_a_library_is_compiled_once(tmp_path, monkeypatch):
    if compiler.missing_compiler():
        pytest.skip(compiler.missing_compiler())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int answer() { return 42; }')
    assert compiler.compiled_library(source).answer() == 42
    (library,) = (tmp_path / "cubemesh" / "compile").iterdir()
    made = library.stat().st_mtime_ns
    compiler.compiled_library.cache_clear()
    assert compiler.compiled_library(source).answer() == 42
    assert library.stat().st_mtime_ns == made


def test_after_a_change_of_a_header_it_is_compiled_again(tmp_path, monkeypatch):
    if compiler.missing_compiler():
        pytest.skip(compiler.missing_compiler())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source, header = tmp_path / "value.cpp", tmp_path / "value.h"
    source.write_text('#include "value.h"\nextern "C" int answer() { return value; }')
    for value in (1, 2):
        header.write_text(f"constexpr int value = {value};")
        compiler.compiled_library.cache_clear()
        assert compiler.compiled_library(source).answer() == value


def test_a_failed_compilation_names_the_file(tmp_path, monkeypatch):
    if compiler.missing_compiler():
        pytest.skip(compiler.missing_compiler())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "broken.cpp"
    source.write_text("int x = ;")
    with pytest.raises(OSError, match=r"broken\.cpp"):
        compiler.compiled_library(source)
    assert list((tmp_path / "cubemesh" / "compile").iterdir()) == []


def test_without_a_compiler_the_error_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in compiler.missing_compiler()
    with pytest.raises(OSError, match="install g"):
        compiler.compiled_library(tmp_path / "any.cpp")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "g++" in compiler.missing_compiler()


@pytest.mark.parametrize("content", [b"", b"half of it", None])
def test_a_truncated_library_is_compiled_again(content, tmp_path, monkeypatch):
    if compiler.missing_compiler():
        pytest.skip(compiler.missing_compiler())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "number.cpp"
    source.write_text(f'extern "C" int number() {{ return {len(content or b"")}; }}')
    compiling = compiler._compile

    def killed(path, source, library, more):
        monkeypatch.setattr(compiler, "_compile", compiling)
        compiling(path, source, library, more)
        library.write_bytes(library.read_bytes()[:64] if content is None else content)

    monkeypatch.setattr(compiler, "_compile", killed)
    assert compiler.compiled_library(source).number() == len(content or b"")
    assert len(list((tmp_path / "cubemesh" / "compile").iterdir())) == 1


def test_a_library_that_cannot_be_loaded_is_not_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    refused = OSError("failed to map segment from shared object: Cannot allocate memory")
    made = []

    def refuse(path):
        raise refused

    monkeypatch.setattr(compiler, "cpp_compiler", lambda: "/bin/true")
    monkeypatch.setattr(compiler, "_compile", lambda *given: made.append(given))
    monkeypatch.setattr(compiler.ctypes, "CDLL", refuse)
    source = tmp_path / "any.cpp"
    source.write_text("")
    with pytest.raises(OSError, match="Cannot allocate memory"):
        compiler.compiled_library(source)
    assert len(made) == 1


def test_a_compiler_that_hangs_is_an_error_of_the_system(tmp_path, monkeypatch):
    """The caller catches OSError and uses PyTorch's own operations."""
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 60\n")
    hangs.chmod(0o755)
    monkeypatch.setenv("CXX", str(hangs))
    monkeypatch.setattr(compiler, "COMPILE_S", 0.05)
    source = tmp_path / "any.cpp"
    source.write_text("")
    with pytest.raises(OSError, match=r"hangs .*\b0 s$"):
        compiler.compiled_library(source)
