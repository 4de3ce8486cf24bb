//! Engine-side client: session, reconnect, reply reader, copy thread.
