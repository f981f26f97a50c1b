# SPDX-License-Identifier: Apache-2.0
c = get_config()  # noqa: F821, JupyterHub's
c.Spawner.cmd = ["/usr/bin/rmmshim", "run", "--limit-job", "8GiB", "--quiet", "--", "jupyterhub-singleuser"]
