{{- define "mirror-rt.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "mirror-rt.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mirror-rt.labels" -}}
{{ include "mirror-rt.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "mirror-rt.account" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "mirror-rt.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end -}}
{{- end }}

{{- define "mirror-rt.scheme" -}}
{{- if or .Values.tlsSecret (index .Values.serve "tls-certificate") }}HTTPS{{ else }}HTTP{{ end -}}
{{- end }}

{{/* Of files of a secret: their owner is root, so the pod's group reads them; KServe's pods have none. */}}
{{- define "mirror-rt.secret" -}}
{secretName: {{ .name }}{{ if not .root.Values.kserve.enabled }}, defaultMode: 0400{{ end }}}
{{- end }}

{{/* What a pod of a deployment and one of a KServe runtime share. */}}
{{- define "mirror-rt.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
volumes:
  - name: tmp
    emptyDir: {medium: Memory, sizeLimit: 64Mi}
  {{- if and .Values.modelsClaim (not .Values.kserve.enabled) }}
  - name: models
    persistentVolumeClaim: {claimName: {{ .Values.modelsClaim }}, readOnly: true}
  {{- end }}
  {{- if .Values.keysSecret }}
  - name: keys
    secret: {{ include "mirror-rt.secret" (dict "name" .Values.keysSecret "root" .) }}
  {{- end }}
  {{- if .Values.tlsSecret }}
  - name: tls
    secret: {{ include "mirror-rt.secret" (dict "name" .Values.tlsSecret "root" .) }}
  {{- end }}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "mirror-rt.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  {{- range $name, $value := .Values.serve }}
  {{- if not (and $.Values.kserve.enabled (eq $name "source")) }}
  {{- /* toJson, because toString writes large numbers as 1.6e+07 */}}
  - {name: MIRROR_RT_SERVE_{{ $name | replace "-" "_" | upper }}, value: {{ (kindIs "string" $value | ternary $value (toJson $value)) | quote }}}
  {{- end }}
  {{- end }}
  {{- if .Values.kserve.enabled }}
  - {name: MIRROR_RT_SERVE_SOURCE, value: /mnt/models}
  - {name: MIRROR_RT_SERVE_MODEL_NAME, value: {{ include "mirror-rt.name" . }}}
  {{- end }}
  {{- if .Values.keysSecret }}
  - {name: MIRROR_RT_SERVE_API_KEYS_FILE, value: /keys/keys}
  {{- end }}
  {{- if .Values.tlsSecret }}
  - {name: MIRROR_RT_SERVE_TLS_CERTIFICATE, value: /tls/tls.crt}
  - {name: MIRROR_RT_SERVE_TLS_KEY, value: /tls/tls.key}
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
startupProbe:
  httpGet: {path: /v2/health/ready, port: 8080, scheme: {{ include "mirror-rt.scheme" . }}}
  periodSeconds: 2
  failureThreshold: 90
  timeoutSeconds: 6
readinessProbe:
  httpGet: {path: /v2/health/ready, port: 8080, scheme: {{ include "mirror-rt.scheme" . }}}
  periodSeconds: 5
  timeoutSeconds: 6
livenessProbe:
  httpGet: {path: /v2/health/live, port: 8080, scheme: {{ include "mirror-rt.scheme" . }}}
  periodSeconds: 10
  timeoutSeconds: 5
lifecycle:
  # Until the endpoints of the service are without this pod.
  preStop:
    exec: {command: [sleep, "5"]}
resources: {{ toJson .Values.resources }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- if and .Values.modelsClaim (not .Values.kserve.enabled) }}
  - {name: models, mountPath: /models, readOnly: true}
  {{- end }}
  {{- if .Values.keysSecret }}
  - {name: keys, mountPath: /keys, readOnly: true}
  {{- end }}
  {{- if .Values.tlsSecret }}
  - {name: tls, mountPath: /tls, readOnly: true}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
