# dlemu with PyTorch for CPUs and Open MPI:
#
#   docker build -t dlemu .
#   docker run --rm -v /mnt/nvme:/data -w /data dlemu doctor /data
#
# For several ranks: docker run --rm --shm-size=8g -v /mnt/nvme:/data -w /data --entrypoint mpirun \
#   dlemu --allow-run-as-root --bind-to none -n 4 dlemu run workload=unet3d_h100 ...
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim-bookworm
COPY --from=build /wheels /wheels
COPY constraints.txt /tmp/constraints.txt
RUN python -m venv /opt/dlemu \
    && /opt/dlemu/bin/pip install --no-cache-dir -c /tmp/constraints.txt \
         --extra-index-url https://download.pytorch.org/whl/cpu \
         "$(echo /wheels/dlemu-*.whl)[torch,mpi,plot]" \
    && rm -r /wheels /tmp/constraints.txt
ENV PATH=/opt/dlemu/bin:$PATH
ENTRYPOINT ["dlemu"]
CMD ["--help"]
