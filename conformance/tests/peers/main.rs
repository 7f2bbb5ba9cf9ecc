//! Weir against real peers. The suites are one program, so that they run side by side, as many as
//! there are processors ([`conformance::Turn`]): they mostly wait, for guests, leases and graces.

mod attributes;
mod check;
mod client_state;
mod exports;
mod interop;
mod kernel;
mod libnfs;
mod locks;
mod pjdfstest;
mod scenarios;
