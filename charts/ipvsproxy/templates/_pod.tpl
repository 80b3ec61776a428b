{{/* What the Pods of the chart have in common. */}}

{{/* Where a server listens, as JSON: (dict "text" ADDRESS "default" PORT). A blank address is the default one. */}}
{{- define "ipvsproxy.listener" -}}
{{- $port := regexFind ":[0-9]+$" .text | trimPrefix ":" | default .default -}}
{{- $host := trimSuffix (printf ":%s" $port) .text | trimPrefix "[" | trimSuffix "]" -}}
{{- dict "host" $host "port" (int $port) | toJson -}}
{{- end -}}

{{- define "ipvsproxy.healthz" -}}
{{- $settings := include "ipvsproxy.settings" . | fromJson -}}
{{- $text := $settings.healthzBindAddress | default "0.0.0.0:10256" -}}
{{- $found := include "ipvsproxy.listener" (dict "text" $text "default" "10256") | fromJson -}}
{{- /* A server at all addresses listens on loopback too. */ -}}
{{- $host := ternary "127.0.0.1" $found.host (has $found.host (list "0.0.0.0" "::")) -}}
{{- dict "host" $host "port" (int $found.port) | toJson -}}
{{- end -}}

{{- define "ipvsproxy.metrics" -}}
{{- $settings := include "ipvsproxy.settings" . | fromJson -}}
{{- $text := $settings.metricsBindAddress | default "127.0.0.1:10249" -}}
{{- include "ipvsproxy.listener" (dict "text" $text "default" "10249") -}}
{{- end -}}

{{- define "ipvsproxy.configFile" -}}
{{- if .Values.existingConfigMap.name -}}
{{ .Values.existingConfigMap.mountPath }}/{{ .Values.existingConfigMap.key }}
{{- else -}}
/etc/ipvsproxy/config.conf
{{- end -}}
{{- end -}}

{{/* The flags that every run of the program has: a file of kubeadm's may name another mode. */}}
{{- define "ipvsproxy.commonArgs" -}}
- --config={{ include "ipvsproxy.configFile" . }}
- --proxy-mode=ipvs
- --hostname-override=$(NODE_NAME)
{{- end -}}

{{- define "ipvsproxy.nodeName" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end -}}

{{- define "ipvsproxy.env" -}}
{{- $server := include "ipvsproxy.apiServer" . | fromJson -}}
{{ include "ipvsproxy.nodeName" . }}
# Instead of the Service `kubernetes`, which this proxy serves.
- name: KUBERNETES_SERVICE_HOST
  value: {{ $server.host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ $server.port | quote }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* For a process that speaks netlink and iptables, and writes nowhere but where something is mounted. */}}
{{- define "ipvsproxy.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsUser: 0
runAsGroup: 0
capabilities:
  drop: [ALL]
  # NET_ADMIN: netlink, and the sysctls of the network. NET_RAW: rules that name sets, and the legacy tables of iptables.
  add: [NET_ADMIN, NET_RAW]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "ipvsproxy.noPrivileges" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65534
runAsGroup: 65534
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Does nothing: that it runs tells that the container before it has succeeded on this node. */}}
{{- define "ipvsproxy.idleContainer" -}}
- name: done
  image: {{ include "ipvsproxy.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [sleep, infinity]
  resources:
    requests:
      cpu: 1m
      memory: 4Mi
  securityContext:
    {{- include "ipvsproxy.noPrivileges" . | nindent 4 }}
{{- end -}}

{{/* Common to all Pods of the chart, which work on the node's own network. */}}
{{- define "ipvsproxy.hostPod" -}}
hostNetwork: true
# The node's own resolver: cluster DNS is behind a Service.
dnsPolicy: Default
priorityClassName: {{ .Values.priorityClassName }}
serviceAccountName: {{ include "ipvsproxy.serviceAccountName" . }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{/* The configuration, and what it needs. */}}
{{- define "ipvsproxy.configMounts" -}}
- name: config
  mountPath: {{ include "ipvsproxy.configFile" . | dir }}
  readOnly: true
# Certificates of a kubeconfig are put there.
- name: tmp
  mountPath: /tmp
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ipvsproxy.configVolumes" -}}
- name: config
  configMap:
    name: {{ .Values.existingConfigMap.name | default (include "ipvsproxy.fullname" .) }}
- name: tmp
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What is the node's. */}}
{{- define "ipvsproxy.hostMounts" -}}
# The lock that every iptables program of the node takes.
- name: xtables-lock
  mountPath: /run/xtables.lock
# Where root of the node asks the daemon.
- name: run
  mountPath: /run/ipvsproxy
{{- end -}}

{{- define "ipvsproxy.hostVolumes" -}}
- name: xtables-lock
  hostPath:
    path: /run/xtables.lock
    type: FileOrCreate
- name: run
  hostPath:
    path: /run/ipvsproxy
    type: DirectoryOrCreate
{{- end -}}

{{/* `affinity` with one expression more in each of its terms for nodes: (list . OPERATOR). */}}
{{- define "ipvsproxy.affinity" -}}
{{- $affinity := deepCopy (index . 0).Values.affinity -}}
{{- $expression := dict "key" "ipvsproxy.io/clean-up" "operator" (index . 1) -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $terms := dig "nodeAffinity" $required "nodeSelectorTerms" (list dict) $affinity -}}
{{- range $terms -}}
{{- $_ := set . "matchExpressions" (append (.matchExpressions | default list) $expression) -}}
{{- end -}}
{{- $forNodes := merge (dict $required (dict "nodeSelectorTerms" $terms)) ($affinity.nodeAffinity | default dict) -}}
{{- merge (dict "nodeAffinity" $forNodes) $affinity | toYaml -}}
{{- end -}}
