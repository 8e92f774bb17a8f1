"""What is compiled is kept, and where nothing can be compiled it is said what to do."""

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


def test_a_changed_header_is_compiled_anew(tmp_path, monkeypatch):
    if compiler.missing_compiler():
        pytest.skip(compiler.missing_compiler())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source, header = tmp_path / "told.cpp", tmp_path / "told.h"
    source.write_text('#include "told.h"\nextern "C" int answer() { return told; }')
    for told in (1, 2):
        header.write_text(f"constexpr int told = {told};")
        compiler.compiled_library.cache_clear()
        assert compiler.compiled_library(source).answer() == told


def test_what_does_not_compile_says_why(tmp_path, monkeypatch):
    if compiler.missing_compiler():
        pytest.skip(compiler.missing_compiler())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "broken.cpp"
    source.write_text("int x = ;")
    with pytest.raises(OSError, match=r"broken\.cpp"):
        compiler.compiled_library(source)
    assert list((tmp_path / "cubemesh" / "compile").iterdir()) == []


def test_without_a_compiler_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in compiler.missing_compiler()
    with pytest.raises(OSError, match="install g"):
        compiler.compiled_library(tmp_path / "any.cpp")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "g++" in compiler.missing_compiler()


@pytest.mark.parametrize("content", [b"", b"half of it", None])
def test_a_library_that_was_cut_short_is_compiled_anew(content, tmp_path, monkeypatch):
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


def test_a_library_that_cannot_be_read_is_left_as_it_is(tmp_path, monkeypatch):
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
    """For it is caught as one, and PyTorch's own operations are used."""
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 60\n")
    hangs.chmod(0o755)
    monkeypatch.setenv("CXX", str(hangs))
    monkeypatch.setattr(compiler, "COMPILE_S", 0.05)
    source = tmp_path / "any.cpp"
    source.write_text("")
    with pytest.raises(OSError, match=r"hangs .*\b0 s$"):
        compiler.compiled_library(source)
