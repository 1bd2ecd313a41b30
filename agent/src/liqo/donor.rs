//! What the donor's agent does with Liqo on its cluster.
