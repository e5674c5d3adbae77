# One image for the head, the workers and a single machine: docs/guides/platform.md, "The image".
#
#     docker build -t graphmill:0.2.0-cpu --build-arg TORCH_INDEX=<CPU wheel index> .
#     docker build -t graphmill:0.2.0-cuda --build-arg DEVICE=cuda --build-arg TORCH_INDEX=<CUDA wheel index> .
#
# pip's own settings, for an index of your own, stay out of the image: `--secret id=pip.conf,src=pip.conf`.

# Any Debian or Ubuntu with Python 3.11 or newer and its venv module. The wheels of torch bring CUDA; the driver is the node's.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

# The build of torch that has to come out, cpu or cuda. Without TORCH_INDEX pip's own index decides, and the build fails if it has the other one.
ARG DEVICE=cpu
ARG TORCH_INDEX=
# The processor that the loops are compiled for. Loops for the processor of the build machine would be compiled again on any other kind of node.
# x86-64-v3 runs on servers since 2015; `generic` on all, and on arm64.
ARG LOOPS_CPU=x86-64-v3
# What a job needs, torch first and alone. From pyproject.toml and constraints.txt by `python .ci/lock.py --lists`.
ARG PACKAGES="\
    torch==2.13.0 \
    numpy==2.4.6 \
    scipy==1.17.1 \
    pyarrow==26.0.1 \
    fsspec==2026.9.0 \
    numba==0.68.1 \
    psutil==7.2.2 \
    safetensors==0.8.0 \
    ray[default,train]==2.60.0 \
    tensorboard==2.21.0 \
    rich==15.0.0 \
    optuna==5.0.0 \
    pydantic==2.14.3 \
    PyYAML==6.0.3 \
    Jinja2==3.1.6 \
    matplotlib==3.11.2 \
    s3fs==2026.9.0 \
    gcsfs==2026.10.1 \
"

# Login shells, as KubeRay may start, read their PATH from /etc/profile.d.
RUN useradd --uid 1000 --user-group --create-home --shell /bin/bash graphmill \
    && echo 'PATH=/opt/graphmill/bin:$PATH' > /etc/profile.d/graphmill.sh
ENV PATH=/opt/graphmill/bin:$PATH \
    NUMBA_CPU_NAME=${LOOPS_CPU} \
    NUMBA_CPU_FEATURES= \
    RAY_USAGE_STATS_ENABLED=0 \
    RAY_JOB_STOP_WAIT_TIME_S=60 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

COPY constraints.txt /opt/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf,mode=0444 \
    set -eu -- $PACKAGES; \
    python3 -m venv /opt/graphmill; \
    pip install --no-cache-dir --no-compile --disable-pip-version-check -q ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$1"; \
    python -W ignore -c "import sys, torch; built = 'cuda' if torch.version.cuda else 'cpu'; sys.exit(built != '$DEVICE' and \
        f'expected torch for $DEVICE, got torch {torch.__version__} for {built}; set --build-arg DEVICE={built} or TORCH_INDEX')"; \
    pip install --no-cache-dir --no-compile --disable-pip-version-check -q -c /opt/constraints.txt "$@"; \
    python -m compileall -q -j 0 /opt/graphmill/lib > /dev/null || echo "some files of packages are no Python of this version"

COPY . /opt/source
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf,mode=0444 \
    PIP_CONSTRAINT=/opt/constraints.txt pip install --no-cache-dir --disable-pip-version-check -q --no-deps /opt/source \
    && rm -r /opt/source

USER graphmill
WORKDIR /home/graphmill
RUN graphmill doctor --compile --ray no

# Healthy: shared memory is not exhausted, and the Ray node of this container, if there is one, answers.
HEALTHCHECK --interval=60s --timeout=30s --start-period=120s CMD ["graphmill", "doctor", "--health"]
CMD ["graphmill", "doctor"]
