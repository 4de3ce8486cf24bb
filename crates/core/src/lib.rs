//! Sans-IO ownership core: slots, index, ledger, operations, leases.
