# The gateway as an image: docker build -t session-coordinator .
# It listens on every address of its container, so it needs keys:
#   docker run -p 127.0.0.1:8080:8080 -e COORDINATOR_API_KEYS=demo:local-demo-key session-coordinator

FROM python:3.11-slim AS build
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt build hatchling
COPY pyproject.toml README.md ./
COPY coordinator ./coordinator
COPY gateway_adapter ./gateway_adapter
COPY lua ./lua
RUN python -m build --wheel --no-isolation --outdir /dist \
 && python -m venv /opt/session-coordinator \
 && /opt/session-coordinator/bin/pip install --no-cache-dir --constraint constraints.txt /dist/*.whl

FROM python:3.11-slim
# A fixed uid, so that a mounted keys file can be given to it.
RUN groupadd --gid 10001 gateway \
 && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin gateway
COPY --from=build /opt/session-coordinator /opt/session-coordinator
ENV PATH=/opt/session-coordinator/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8080
# Straight to the process: a proxy that the container was given for its upstream is not asked.
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:%s/healthz' % os.environ.get('COORDINATOR_PORT', '8080'), timeout=2)"]
ENTRYPOINT ["session-coordinator"]
CMD ["serve", "--host", "0.0.0.0"]
