# Prefix Gateway, and the simulated engine: `docker build -t prefix-gateway .`
#
# Runs as uid 10001 with a read-only root; it writes nothing but what tokenizers and encodings are fetched to
# (/var/cache/prefix-gateway) and, where the configuration says so, the files of audit and spaces.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

FROM ${PYTHON_IMAGE} AS build
# Where packages come from, if there is a mirror.
ARG PIP_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python -m venv /opt/prefix-gateway && mkdir /var/cache/prefix-gateway
# Dependencies first: this layer changes only with the lock file, not with every line of code. Wheels only: building
# one would fetch what the file does not name.
COPY deploy/container/requirements.lock .
RUN /opt/prefix-gateway/bin/pip install --require-hashes --only-binary :all: --requirement requirements.lock
# Only tokenizers are used of transformers, and nothing of it that needs a deep-learning library.
RUN cd /opt/prefix-gateway/lib/python3*/site-packages \
    && find transformers/models -not -path '*/auto/*' \
        \( -name 'modeling_*' -o -name 'modular_*' -o -name 'convert_*' -o -name 'generation_*' \) -delete \
    && find . -type d -name tests -prune -exec rm -r {} +
COPY pyproject.toml README.md LICENSE ./
COPY config/minimal.yaml config/
COPY gateway gateway
# In the end: whether what was left out is missed.
RUN /opt/prefix-gateway/bin/pip install --no-deps --no-build-isolation . \
    && /opt/prefix-gateway/bin/pip uninstall --yes setuptools pip \
    && /opt/prefix-gateway/bin/prefix-gateway check config/minimal.yaml \
    && /opt/prefix-gateway/bin/python -c 'from transformers import AutoTokenizer; AutoTokenizer.from_pretrained("gateway/tokenize/builtin/demo").apply_chat_template([{"role": "user", "content": "Hello"}])'

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="Prefix Gateway" \
      org.opencontainers.image.description="OpenAI-compatible gateway that sends each request to the replica holding its prompt prefix warm" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/prefix-gateway/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    HF_HOME=/var/cache/prefix-gateway/huggingface \
    TIKTOKEN_CACHE_DIR=/var/cache/prefix-gateway/tiktoken
COPY --from=build /opt/prefix-gateway /opt/prefix-gateway
COPY --from=build --chown=10001:10001 /var/cache/prefix-gateway /var/cache/prefix-gateway
COPY --chmod=0755 deploy/container/healthcheck.py /usr/local/bin/healthcheck
COPY --chmod=0644 config/minimal.yaml /etc/prefix-gateway/gateway.yaml
USER 10001:10001
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["healthcheck"]
ENTRYPOINT ["prefix-gateway"]
CMD ["serve", "--config", "/etc/prefix-gateway/gateway.yaml"]
