//! Liqo, the data plane of the delivery `virtual-node`: both sides of its key exchange, by sealed messages instead of
//! administrators' kubeconfigs, and of its network.
//!
//! `donor`, `origin` and `network` act on this cluster; this file has what they share. Liqo's kinds are dynamic
//! objects, whose schema the API server checks.

pub mod donor;
mod dynamic;
pub mod messages;
pub mod network;
pub mod origin;
mod own_rights;
mod own_user;
mod tenant_namespace;
mod version;
mod waiting;

use kube::core::{ApiResource, GroupVersionKind};

pub use messages::{BearerToken, Challenge, IdentityParams, PeerCredential, TenantRequest};
pub use own_user::own_user_name;
pub use tenant_namespace::TENANT_NAMESPACE_PREFIX;
pub(crate) use tenant_namespace::{MAX_LIQO_ID, tenant_namespace, tenant_namespace_of};

/// Class of the ResourceSlices that this agent grants.
pub const SLICE_CLASS: &str = "comity";
/// Most idle slices, with their virtual nodes, kept for later leases of a peering. Each costs the origin a
/// virtual-kubelet (40 MiB), and saves a lease its start time.
pub(crate) const MAX_IDLE_SLICES: usize = 2;
/// Label of every object made for a peering; its value is the peering's id.
pub const PEERING_LABEL: &str = "comity.dev/peering";
/// Label of virtual nodes, and annotation of slices: the namespace whose pods the lease is for.
pub const TARGET_NAMESPACE_LABEL: &str = "comity.dev/target-namespace";
/// Name of the agent's rights, as an origin, in a tenant namespace: the role in `deploy/agent/liqo-origin.yaml`, and
/// its bindings.
const ORIGIN_ROLE: &str = "comity-liqo-origin-tenant";
/// Liqo's label with the other cluster's Liqo id.
pub const REMOTE_CLUSTER_LABEL: &str = "liqo.io/remote-cluster-id";
/// Liqo's label with the user who made an offloaded pod; the policies hold consumers to their own name.
pub const CREATOR_LABEL: &str = "liqo.io/creator-user";
/// Liqo's Deployment with most of its controllers.
const CONTROLLER_MANAGER: &str = "liqo-controller-manager";
/// Liqo's label of tenant namespaces.
pub const TENANT_NAMESPACE_LABEL: &str = "liqo.io/tenant-namespace";

/// The other side of a peering, with its Liqo id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiqoPeer {
    /// "peer-N".
    pub peering: String,
    /// Comity's id of its cluster.
    pub cluster: String,
    /// Its Liqo cluster id: a DNS label.
    pub liqo_id: String,
}

impl LiqoPeer {
    /// The namespace in which Liqo keeps everything of this peer.
    #[must_use]
    pub fn tenant_namespace(&self) -> String {
        tenant_namespace_of(&self.liqo_id)
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $group:literal, $version:literal, $kind:literal, $plural:literal;)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name() -> ApiResource {
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk($group, $version, $kind), $plural)
        })*
    };
}

kinds! {
    /// `Tenant`: a consumer, on the donor.
    tenant = "authentication.liqo.io", "v1beta1", "Tenant", "tenants";
    /// `Identity`: a credential for a provider, on the origin.
    identity = "authentication.liqo.io", "v1beta1", "Identity", "identities";
    /// `ResourceSlice`: requested and granted resources; replicated from origin to donor.
    resource_slice = "authentication.liqo.io", "v1beta1", "ResourceSlice", "resourceslices";
    /// `Renew`: a certificate renewal; replicated from origin to donor.
    renew = "authentication.liqo.io", "v1beta1", "Renew", "renews";
    /// `ForeignCluster`: the state of a peering, on both sides; never removed by Liqo.
    foreign_cluster = "core.liqo.io", "v1beta1", "ForeignCluster", "foreignclusters";
    /// `VirtualNode`: the node of a slice, on the origin.
    virtual_node = "offloading.liqo.io", "v1beta1", "VirtualNode", "virtualnodes";
    /// `NamespaceOffloading`: lets pods of a namespace run remotely, on the origin.
    namespace_offloading = "offloading.liqo.io", "v1beta1", "NamespaceOffloading", "namespaceoffloadings";
    /// `NamespaceMap`: remote namespaces; replicated from origin to donor.
    namespace_map = "offloading.liqo.io", "v1beta1", "NamespaceMap", "namespacemaps";
    /// `ShadowPod`: an offloaded pod, on the donor.
    shadow_pod = "offloading.liqo.io", "v1beta1", "ShadowPod", "shadowpods";
    /// `Quota`: limits of a slice's credential, on the donor.
    quota = "offloading.liqo.io", "v1beta1", "Quota", "quotas";
    /// `VkOptionsTemplate`: how virtual-kubelets are started, on the origin.
    vk_options_template = "offloading.liqo.io", "v1beta1", "VkOptionsTemplate", "vkoptionstemplates";
    /// `Configuration`: another cluster's networks, and how this cluster's Liqo remaps them.
    configuration = "networking.liqo.io", "v1beta1", "Configuration", "configurations";
    /// `GatewayServer`: the donor's gateway, which the origin's connects to.
    gateway_server = "networking.liqo.io", "v1beta1", "GatewayServer", "gatewayservers";
    /// `GatewayClient`: the origin's gateway, which connects to the donor's.
    gateway_client = "networking.liqo.io", "v1beta1", "GatewayClient", "gatewayclients";
    /// `PublicKey`: the key of another cluster's gateway.
    public_key = "networking.liqo.io", "v1beta1", "PublicKey", "publickeies";
    /// `Connection`: status of a gateway's tunnel.
    connection = "networking.liqo.io", "v1beta1", "Connection", "connections";
    /// `WgGatewayServer`: Liqo's WireGuard object for a `GatewayServer`.
    wg_gateway_server = "networking.liqo.io", "v1beta1", "WgGatewayServer", "wggatewayservers";
    /// `WgGatewayClient`: Liqo's WireGuard object for a `GatewayClient`.
    wg_gateway_client = "networking.liqo.io", "v1beta1", "WgGatewayClient", "wggatewayclients";
    /// `WgGatewayServerTemplate`: template of `WgGatewayServer`s.
    gateway_server_template = "networking.liqo.io", "v1beta1", "WgGatewayServerTemplate", "wggatewayservertemplates";
    /// `WgGatewayClientTemplate`: template of `WgGatewayClient`s.
    gateway_client_template = "networking.liqo.io", "v1beta1", "WgGatewayClientTemplate", "wggatewayclienttemplates";
    /// `Network`: a range of addresses in Liqo's IPAM.
    ipam_network = "ipam.liqo.io", "v1alpha1", "Network", "networks";
}
