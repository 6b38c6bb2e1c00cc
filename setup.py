"""What pyproject.toml cannot say: the passes of `submodel.native` in C. Without a compiler they are left out."""

from setuptools import Extension, setup

FOLDER = "src/cos2p/submodel/native"

setup(
    ext_modules=[
        Extension(
            "cos2p.submodel.native._library",
            sources=[f"{FOLDER}/adding.c", f"{FOLDER}/sums.c"],
            depends=[f"{FOLDER}/common.h", f"{FOLDER}/order.h"],
            extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off"],
            libraries=["m"],
            optional=True,
            py_limited_api=True,  # nothing of Python is in it: one build serves all versions
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
