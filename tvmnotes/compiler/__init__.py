"""In the compiler, `build.build` turns what an importer gives into a `runtime.compiled.Compiled`."""
