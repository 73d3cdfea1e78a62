{{- define "hushsum.labels" -}}
app.kubernetes.io/name: hushsum
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "hushsum.name" -}}
{{- printf "%s-%s" .Release.Name "hushsum" | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- /* Which Pods: {root, role}. */ -}}
{{- define "hushsum.selector" -}}
app.kubernetes.io/name: hushsum
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "hushsum.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end -}}
{{- end }}

{{- /* The settings as TOML. A JSON string, number or boolean is one of TOML as well. */ -}}
{{- define "hushsum.settings" -}}
{{- $own := dict
    "plan" "/config/plan.json"
    "log" "kafka"
    "store" "postgresql"
    "listen" "0.0.0.0:7443"
    "tls_cert" "/secrets/server.pem"
    "tls_key" "/secrets/server.key"
    "authentication" "token"
    "tokens" "/secrets/tokens.jsonl"
    "metrics_listen" "0.0.0.0:7444"
    "metrics_client_ca" "/secrets/metrics-ca.pem"
    "health_listen" "0.0.0.0:7445"
-}}
{{- with .Values.receiptsCopy }}{{ $_ := set $own "receipts_copy" . }}{{ end -}}
{{- range $name, $value := .Values.settings -}}
{{- if or (hasKey $own $name) (has $name (list "role" "postgres_dsn" "receipts_copy" "page_listen" "page_hosts")) -}}
{{- fail (printf "settings.%s: the chart sets it" $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.settings.otlp (not .Values.otlpEndpoint) -}}
{{- fail "otlpEndpoint: required with settings.otlp: where spans, log lines and metrics go" -}}
{{- end -}}
{{- if and .Values.otlpEndpoint (not .Values.settings.otlp) -}}
{{- fail "otlpEndpoint: allowed only with settings.otlp: true, without which nothing is sent there" -}}
{{- end -}}
{{- range $name, $value := merge $own .Values.settings }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}

{{- /* What a role has beside the settings of all: {root, role}. */ -}}
{{- define "hushsum.args" -}}
{{- $args := list "hushsum" "serve" "--config" "/etc/hushsum/hushsum.toml" "--role" .role -}}
{{- if eq .role "releaser" -}}
{{- with .root.Values.page }}{{ if .enabled }}
{{- $args = concat $args (list "--page" "0.0.0.0:7446" "--page-hosts" .hosts) }}{{ end }}{{ end -}}
{{- end -}}
{{- toJson $args -}}
{{- end }}

{{- /* One role: {root, role, values, replicas}. */ -}}
{{- define "hushsum.deployment" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "hushsum.name" $root }}-{{ .role }}
  labels:
    {{- include "hushsum.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  {{- if kindIs "invalid" .replicas | not }}
  replicas: {{ .replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "hushsum.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "hushsum.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .role }}
      annotations:
        # Settings are read at the start alone: other ones start new Pods.
        checksum/settings: {{ include "hushsum.settings" $root | sha256sum }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      {{- with $values.image.pullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        # The group of mounted secrets: root owns them, and this group may read them.
        fsGroup: 10001
        seccompProfile: {type: RuntimeDefault}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "hushsum.selector" . | nindent 14 }}
      containers:
        - name: {{ .role }}
          image: {{ include "hushsum.image" $root | quote }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args: {{ include "hushsum.args" . }}
          env:
            - name: HUSHSUM_POSTGRES_DSN
              valueFrom:
                secretKeyRef: {name: {{ $values.secrets.database | quote }}, key: dsn}
            - name: OTEL_EXPORTER_OTLP_ENDPOINT
              value: {{ $values.otlpEndpoint | quote }}
          ports:
            - {name: grpc, containerPort: 7443}
            - {name: metrics, containerPort: 7444}
            - {name: health, containerPort: 7445}
            {{- if and (eq .role "releaser") $values.page.enabled }}
            - {name: page, containerPort: 7446}
            {{- end }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          # A Pod is alive as soon as its pages are open, however long it reads the log at its start.
          startupProbe:
            httpGet: {path: /livez, port: health}
            periodSeconds: 3
            timeoutSeconds: 5
            failureThreshold: 30
          livenessProbe:
            httpGet: {path: /livez, port: health}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          readinessProbe:
            httpGet: {path: /readyz, port: health}
            periodSeconds: 3
            timeoutSeconds: 5
            failureThreshold: 5
          resources:
            {{- toYaml .values.resources | nindent 12 }}
          volumeMounts:
            - {name: settings, mountPath: /etc/hushsum, readOnly: true}
            - {name: config, mountPath: /config, readOnly: true}
            - {name: secrets, mountPath: /secrets, readOnly: true}
            {{- if $values.secrets.kafka }}
            - {name: kafka, mountPath: /kafka, readOnly: true}
            {{- end }}
            {{- if $values.secrets.keys }}
            - {name: keys, mountPath: /keys, readOnly: true}
            {{- end }}
            - {name: tmp, mountPath: /tmp}
      volumes:
        - name: settings
          configMap: {name: {{ include "hushsum.name" $root }}}
        - name: config
          configMap: {name: {{ $values.plan.configMap | quote }}}
        - name: secrets
          projected:
            defaultMode: 0440
            sources:
              - secret:
                  name: {{ $values.secrets.tls | quote }}
                  items:
                    - {key: tls.crt, path: server.pem}
                    - {key: tls.key, path: server.key}
              - secret:
                  name: {{ $values.secrets.tokens | quote }}
                  items: [{key: tokens.jsonl, path: tokens.jsonl}]
              - secret:
                  name: {{ $values.secrets.metricsClientCa | quote }}
                  items: [{key: ca.crt, path: metrics-ca.pem}]
        {{- if $values.secrets.kafka }}
        - name: kafka
          secret: {secretName: {{ $values.secrets.kafka | quote }}, defaultMode: 0440}
        {{- end }}
        {{- if $values.secrets.keys }}
        - name: keys
          secret: {secretName: {{ $values.secrets.keys | quote }}, defaultMode: 0440}
        {{- end }}
        - name: tmp
          emptyDir: {medium: Memory, sizeLimit: 256Mi}
{{- end }}
