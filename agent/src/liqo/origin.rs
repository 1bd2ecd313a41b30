//! What the origin's agent does with Liqo on its cluster.
