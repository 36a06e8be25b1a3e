"""Which pace suits a script on a cluster, found out here before the cluster is rented; and what this machine or a run was like."""
