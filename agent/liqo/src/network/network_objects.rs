//! The objects of the network on one side, as data. As with `liqoctl`, their name is the other cluster's.

use comity_agent_kubernetes::call::own_labels;
use kube::api::DynamicObject;
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::{GATEWAY_LABEL, GatewayEndpoint, NetworkSettings, NetworkState};
use crate::{
    LiqoPeer, PEERING_LABEL, REMOTE_CLUSTER_LABEL, configuration as configurations, gateway_client, gateway_server,
    public_key as public_keys,
};

const API_VERSION: &str = "networking.liqo.io/v1beta1";

fn object(peer: &LiqoPeer, kind: &ApiResource, spec: &Value) -> DynamicObject {
    let mut object =
        DynamicObject::new(&peer.liqo_id, kind).within(&peer.tenant_namespace()).data(json!({ "spec": spec }));
    object.metadata.labels =
        Some(own_labels([(REMOTE_CLUSTER_LABEL, peer.liqo_id.as_str()), (PEERING_LABEL, &peer.peering)]));
    object
}

/// The other cluster's networks. Liqo fills in this cluster's half.
pub(super) fn configuration(peer: &LiqoPeer, remote: &NetworkState) -> DynamicObject {
    let cidr = json!({ "pod": remote.pod_cidrs, "external": remote.external_cidrs });
    object(peer, &configurations(), &json!({ "remote": { "cidr": cidr } }))
}

/// Whether Liqo has assigned a range of this cluster to each of the other cluster's.
pub(super) fn is_remapped(configuration: &DynamicObject, remote: &NetworkState) -> bool {
    let complete = |kind: &str, wanted: usize| {
        let ranges = configuration.data.pointer(&format!("/status/remote/cidr/{kind}")).and_then(Value::as_array);
        ranges.is_some_and(|ranges| {
            ranges.len() == wanted && ranges.iter().all(|range| range.as_str().is_some_and(|range| !range.is_empty()))
        })
    };
    complete("pod", remote.pod_cidrs.len()) && complete("external", remote.external_cidrs.len())
}

/// The donor's gateway, which accepts the connection.
pub(super) fn server(peer: &LiqoPeer, settings: &NetworkSettings) -> DynamicObject {
    let gateway = &settings.gateway;
    let mut endpoint = json!({ "serviceType": gateway.service_type.text(), "port": gateway.port });
    if let Some(port) = gateway.node_port {
        endpoint["nodePort"] = json!(port);
    }
    if let Some(address) = gateway.load_balancer_ip {
        endpoint["loadBalancerIP"] = json!(address);
    }
    let template = template(settings, "WgGatewayServerTemplate", &gateway.server_template);
    let spec = json!({ "mtu": gateway.mtu, "endpoint": endpoint, "serverTemplateRef": template });
    object(peer, &gateway_server(), &spec)
}

/// The origin's gateway, which opens the connection.
pub(super) fn client(peer: &LiqoPeer, settings: &NetworkSettings, endpoint: &GatewayEndpoint) -> DynamicObject {
    let gateway = &settings.gateway;
    let template = template(settings, "WgGatewayClientTemplate", &gateway.client_template);
    let endpoint = json!({ "addresses": endpoint.addresses, "port": endpoint.port, "protocol": "UDP" });
    let spec = json!({ "mtu": gateway.mtu, "endpoint": endpoint, "clientTemplateRef": template });
    object(peer, &gateway_client(), &spec)
}

fn template(settings: &NetworkSettings, kind: &str, name: &str) -> Value {
    json!({ "apiVersion": API_VERSION, "kind": kind, "name": name, "namespace": settings.template_namespace() })
}

/// The key of the other cluster's gateway; `key` is its base64.
pub(super) fn public_key(peer: &LiqoPeer, key: &str) -> DynamicObject {
    let mut object = object(peer, &public_keys(), &json!({ "publicKey": key }));
    object.metadata.labels.get_or_insert_default().insert(GATEWAY_LABEL.to_owned(), "true".to_owned());
    object
}

/// The endpoint of a GatewayServer; none without an address or with an invalid port.
pub(super) fn endpoint(server: &DynamicObject) -> Option<GatewayEndpoint> {
    let status = server.data.pointer("/status/endpoint")?;
    let port = u16::try_from(status.get("port")?.as_u64()?).ok().filter(|port| *port > 0)?;
    let addresses = status.get("addresses")?.as_array()?.iter().filter_map(Value::as_str);
    let addresses: Vec<String> = addresses.filter(|address| !address.is_empty()).map(str::to_owned).collect();
    (!addresses.is_empty()).then_some(GatewayEndpoint { addresses, port })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::network::{GatewayServiceType, GatewaySettings};

    fn peer() -> LiqoPeer {
        LiqoPeer { peering: "peer-3".into(), cluster: "north".into(), liqo_id: "north-liqo".into() }
    }

    fn settings(gateway: GatewaySettings) -> NetworkSettings {
        NetworkSettings {
            liqo_namespace: "liqo-system".into(),
            liqo_version: "v1.2.0".into(),
            gateway,
            patience: Duration::from_secs(1),
        }
    }

    fn remote() -> NetworkState {
        NetworkState {
            pod_cidrs: vec!["10.1.0.0/16".parse().unwrap(), "10.2.0.0/16".parse().unwrap()],
            external_cidrs: vec!["10.70.0.0/16".parse().unwrap()],
            public_key: None,
            endpoint: None,
        }
    }

    #[test]
    fn a_gateway_is_as_the_operator_chose() {
        let gateway = GatewaySettings {
            service_type: GatewayServiceType::NodePort,
            node_port: Some(30_840),
            template_namespace: Some("templates".into()),
            ..GatewaySettings::default()
        };
        let server = server(&peer(), &settings(gateway));
        assert_eq!(
            server.data["spec"]["endpoint"],
            json!({ "serviceType": "NodePort", "port": 51_840, "nodePort": 30_840 })
        );
        assert_eq!(server.data["spec"]["serverTemplateRef"]["namespace"], "templates");
        let endpoint = GatewayEndpoint { addresses: vec!["192.0.2.1".into()], port: 30_840 };
        let client = client(&peer(), &settings(GatewaySettings::default()), &endpoint);
        assert_eq!(client.data["spec"]["endpoint"]["protocol"], "UDP");
        assert_eq!(client.data["spec"]["clientTemplateRef"]["namespace"], "liqo-system");
        for object in [server, client] {
            assert_eq!(object.metadata.labels.unwrap()[REMOTE_CLUSTER_LABEL], "north-liqo");
        }
    }

    #[test]
    fn networks_are_remapped_once_each_has_a_range() {
        let mut object = configuration(&peer(), &remote());
        assert!(!is_remapped(&object, &remote()));
        let mut status = |pod: Value| {
            object.data["status"] = json!({ "remote": { "cidr": { "pod": pod, "external": ["10.71.0.0/16"] } } });
            is_remapped(&object, &remote())
        };
        assert!(!status(json!(["10.3.0.0/16"])) && !status(json!(["10.3.0.0/16", ""])));
        assert!(status(json!(["10.3.0.0/16", "10.4.0.0/16"])));
    }

    #[test]
    fn an_endpoint_without_an_address_is_none() {
        let mut server = server(&peer(), &settings(GatewaySettings::default()));
        let mut seen = |status: Value| {
            server.data["status"] = json!({ "endpoint": status });
            endpoint(&server)
        };
        assert_eq!(seen(json!({ "port": 51_840 })), None);
        // A NodePort whose node is not ready, as Liqo writes it.
        assert_eq!(seen(json!({ "port": 30_840, "addresses": [""] })), None);
        assert_eq!(seen(json!({ "port": 0, "addresses": ["192.0.2.1"] })), None);
        assert_eq!(seen(json!({ "port": 1, "addresses": ["192.0.2.1"] })).unwrap().addresses, ["192.0.2.1"]);
    }
}
