cd /tmp/wt/fifty; bash /tmp/build.sh /tmp/wt/fifty -fifty
