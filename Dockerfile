# dlemu with PyTorch for CPUs and Open MPI, as a user who is not root:
#
#   docker build -t dlemu .
#   docker run --rm --user $(id -u):$(id -g) -v /mnt/nvme:/data dlemu doctor /data
#
# Two ranks (the loader's workers hand batches over in shared memory):
#
#   docker run --rm --user $(id -u):$(id -g) --shm-size=8g -v /mnt/nvme:/data --entrypoint mpirun \
#     dlemu --bind-to none --oversubscribe -n 2 dlemu run workload=unet3d_h100 ...
#
# `make image ENGINE=podman` builds it with podman.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY . .
# What no run needs goes: PyTorch's headers and tests, tests of other packages, pip itself.
RUN python -m venv /opt/dlemu \
    && /opt/dlemu/bin/pip install --no-cache-dir -c constraints.txt \
         --extra-index-url https://download.pytorch.org/whl/cpu '.[torch,mpi,plot]' \
    && rm -rf /opt/dlemu/lib/python3*/site-packages/torch/include \
         /opt/dlemu/lib/python3*/site-packages/torch/test \
    && find /opt/dlemu/lib/python3*/site-packages/torch/bin -type f ! -name torch_shm_manager -delete \
    && find /opt/dlemu -type d -name tests -prune -exec rm -rf '{}' + \
    && /opt/dlemu/bin/pip uninstall --yes --quiet pip

FROM python:3.11-slim-bookworm
COPY --from=build /opt/dlemu /opt/dlemu
RUN useradd --create-home dlemu && mkdir /data && chown dlemu /data
ENV PATH=/opt/dlemu/bin:$PATH
USER dlemu
WORKDIR /data
HEALTHCHECK CMD ["dlemu", "--version"]
ENTRYPOINT ["dlemu"]
CMD ["--help"]
