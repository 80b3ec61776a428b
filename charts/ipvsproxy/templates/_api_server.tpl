{{/*
Where the API server is: what the Pods find in KUBERNETES_SERVICE_HOST and _PORT.

A Pod is given the address of the Service `kubernetes` there, which only works once this proxy has served it, and no
longer where it has lost it. So another address is always set; an empty one where the configuration names a kubeconfig,
which then must work.
*/}}

{{/* The configuration in force as far as it is known here, as JSON: `helm template` sees no existing ConfigMap. */}}
{{- define "ipvsproxy.settings" -}}
{{- if .Values.existingConfigMap.name -}}
{{- $found := (lookup "v1" "ConfigMap" .Release.Namespace .Values.existingConfigMap.name).data | default dict -}}
{{- get $found .Values.existingConfigMap.key | default "{}" | fromYaml | toJson -}}
{{- else -}}
{{- .Values.config | toJson -}}
{{- end -}}
{{- end -}}

{{/* Whether the daemon has to reach the API server as a Pod does; empty where it has a kubeconfig, or a folder. */}}
{{- define "ipvsproxy.needsAddress" -}}
{{- $settings := include "ipvsproxy.settings" . | fromJson -}}
{{- $kubeconfig := dig "clientConnection" "kubeconfig" "" $settings -}}
{{- $manifests := dig "ipvsproxy" "manifests" "" $settings -}}
{{- if not (or $kubeconfig $manifests (and .Values.existingConfigMap.name (not $settings))) -}}
yes
{{- end -}}
{{- end -}}

{{/* {"host": …, "port": …} as JSON. */}}
{{- define "ipvsproxy.apiServer" -}}
{{- if .Values.apiServer.host -}}
{{- include "ipvsproxy.checkHost" (list . .Values.apiServer.host "apiServer.host") -}}
{{- dict "host" .Values.apiServer.host "port" (toString .Values.apiServer.port) | toJson -}}
{{- else if include "ipvsproxy.needsAddress" . -}}
{{- include "ipvsproxy.foundApiServer" . -}}
{{- else -}}
{{- dict "host" "" "port" "" | toJson -}}
{{- end -}}
{{- end -}}

{{- define "ipvsproxy.foundApiServer" -}}
{{- $found := dict -}}
{{- range list (list "kube-system" "kube-proxy" "kubeconfig.conf") (list "kube-public" "cluster-info" "kubeconfig") -}}
{{- if not $found.url -}}
{{- $data := (lookup "v1" "ConfigMap" (index . 0) (index . 1)).data | default dict -}}
{{- $clusters := (get $data (index . 2) | default "{}" | fromYaml).clusters | default list -}}
{{- with first $clusters -}}
{{- $_ := set $found "url" (dig "cluster" "server" "" .) -}}
{{- end -}}
{{- $_ := set $found "place" (printf "the ConfigMap %s/%s" (index . 0) (index . 1)) -}}
{{- end -}}
{{- end -}}
{{- if not $found.url -}}
{{- fail "No address of the API server is known: neither kube-system/kube-proxy nor kube-public/cluster-info names one (helm template cannot look). Set apiServer.host to one that each node reaches without a Service proxy; the Service `kubernetes` is served by this proxy and cannot be its own way there." -}}
{{- end -}}
{{- /* helm lint goes on after a refusal. */ -}}
{{- $url := urlParse ($found.url | default "") -}}
{{- if or (ne $url.scheme "https") (not (has $url.path (list "" "/"))) -}}
{{- fail (printf "%s names the API server %v, which is no https://HOST:PORT. Set apiServer.host and apiServer.port." $found.place $found.url) -}}
{{- end -}}
{{- include "ipvsproxy.checkHost" (list . $url.hostname $found.place) -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default "443" -}}
{{- dict "host" $url.hostname "port" $port | toJson -}}
{{- end -}}

{{/* Refuses what is no host, and the Service `kubernetes` by name or address: (list . HOST WHERE-IT-STANDS). */}}
{{- define "ipvsproxy.checkHost" -}}
{{- $host := index . 1 -}}
{{- if not (regexMatch `^([^/\[\]@: ]+|[^/\[\]@ ]*:[^/\[\]@ ]*:[^/\[\]@ ]*)$` $host) -}}
{{- fail (printf "%s is %s, which is more than a name or an address: leave away https://, brackets and port; the port is apiServer.port." (index . 2) $host) -}}
{{- end -}}
{{- $service := lookup "v1" "Service" "default" "kubernetes" -}}
{{- $vips := dig "spec" "clusterIPs" list ($service | default dict) -}}
{{- if or (has $host $vips) (regexMatch "^kubernetes(\\.default(\\.svc(\\..*)?)?)?\\.?$" $host) -}}
{{- fail (printf "%s is %s, which is the Service `kubernetes`: this proxy serves it, so it cannot be its own way to the API server. Set apiServer.host to an address that each node reaches without a Service proxy." (index . 2) $host) -}}
{{- end -}}
{{- end -}}
