{{/* Refuses an object that the cluster does not know: (list . VALUE KIND). */}}
{{- define "ipvsproxy.checkOperator" -}}
{{- $kind := printf "monitoring.coreos.com/v1/%s" (index . 2) -}}
{{- if not ((index . 0).Capabilities.APIVersions.Has $kind) -}}
{{- fail (printf "%s.enabled is set, but the cluster has no %s. Install the Prometheus Operator first, or leave it off (helm template: --api-versions=%s)." (index . 1) $kind $kind) -}}
{{- end -}}
{{- end -}}
