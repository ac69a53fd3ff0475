# A static binary, without the S3 server that `artifactd dev` starts, on an empty image.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
RUN CGO_ENABLED=0 go build -tags nodevs3 -trimpath -buildvcs=false \
      -ldflags "-s -w -X main.version=${VERSION}" -o /out/artifactd ./cmd/artifactd

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/artifactd /artifactd
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/artifactd"]
CMD ["serve"]
