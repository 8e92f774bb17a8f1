"""What is compiled is kept, and where nothing can be compiled it is said what to do."""

import pytest

pytest.importorskip("torch")

from cubemesh.frameworks.pytorch import cpp_compiler


def test_a_library_is_compiled_once(tmp_path, monkeypatch):
    if cpp_compiler.lacks_compiler():
        pytest.skip(cpp_compiler.lacks_compiler())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int answer() { return 42; }')
    assert cpp_compiler.compiled_library(source).answer() == 42
    (library,) = (tmp_path / "cubemesh" / "compile").iterdir()
    made = library.stat().st_mtime_ns
    cpp_compiler.compiled_library.cache_clear()
    assert cpp_compiler.compiled_library(source).answer() == 42
    assert library.stat().st_mtime_ns == made


def test_what_does_not_compile_says_why(tmp_path, monkeypatch):
    if cpp_compiler.lacks_compiler():
        pytest.skip(cpp_compiler.lacks_compiler())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "broken.cpp"
    source.write_text("int x = ;")
    with pytest.raises(OSError, match=r"does not compile broken\.cpp"):
        cpp_compiler.compiled_library(source)
    assert list((tmp_path / "cubemesh" / "compile").iterdir()) == []


def test_without_a_compiler_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "CXX names 'no-such-compiler'" in cpp_compiler.lacks_compiler()
    with pytest.raises(OSError, match="install g"):
        cpp_compiler.compiled_library(tmp_path / "any.cpp")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is none" in cpp_compiler.lacks_compiler()
