{{- define "gateway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "gateway.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "gateway.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "gateway.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ include "gateway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "gateway.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "gateway.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "gateway.secret" -}}
{{- default (include "gateway.fullname" .) .Values.secrets.existing }}
{{- end }}

{{- define "gateway.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /* The configuration: the values', and what the pod's own shape decides. */ -}}
{{- define "gateway.config" -}}
{{- $files := "file:/run/secrets/prefix-gateway" }}
{{- $config := deepCopy .Values.config }}
{{- $server := dict "host" "0.0.0.0" "port" 8080 "admin_host" "0.0.0.0" "admin_port" 8081 "admin_token" (printf "%s/admin-token" $files) }}
{{- $tokens := concat (list (dict "id" "prometheus" "role" "read" "hash" (printf "%s/metrics-token-hash" $files))) (dig "server" "admin_tokens" list $config) }}
{{- $_ := set $server "admin_tokens" $tokens }}
{{- $own := dict "server" $server "spaces" (dict "secret" (printf "%s/spaces-secret" $files)) }}
{{- if or .Values.secrets.state .Values.secrets.redisUrl }}
{{- $_ := set $own "state" (printf "%s/state" $files) }}
{{- end }}
{{- toYaml (mustMergeOverwrite $config $own) }}
{{- end }}

{{- /* Longer than the gateway itself takes, so that it is never cut: drain, grace, and its last words. */ -}}
{{- define "gateway.gracePeriod" -}}
{{- $server := default dict .Values.config.server }}
{{- add (ceil (default 5 (get $server "drain_seconds"))) (ceil (default 30 (get $server "shutdown_grace_seconds"))) 10 }}
{{- end }}
